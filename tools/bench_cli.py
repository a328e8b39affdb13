"""The command of the benchmark of three networks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from course.cli import tables
from course.cli.options import AsJson, Quick, app, progress_to_stderr
from course.text import digits

Names = list[str] | None


@app.command()
def bench(
    network: Annotated[
        Names, typer.Option(help="ssd300, unet3d or resnet50; by default all. Repeatable.")
    ] = None,
    precision: Annotated[
        Names, typer.Option(help="fp32, tf32, fp16 or bf16; by default supported ones. Repeatable.")
    ] = None,
    layout: Annotated[
        Names, typer.Option(help="contiguous (the default) or channels_last. Repeatable.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the networks with torch.compile.")
    ] = False,
    batch: Annotated[int | None, typer.Option(help="By default the published size.")] = None,
    quick: Quick = False,
    json_: AsJson = False,
) -> None:
    """Time SSD300, 3D U-Net and ResNet-50, and report the format that they really computed in."""
    from electives.networks import bench as benchmark
    from electives.networks.catalogue import NETWORKS

    options = {"compile": compile_} | ({} if batch is None else {"batch": batch})
    choices = {
        "layout": layout or ["contiguous"],
        "precision": precision or benchmark.precisions(),
    }
    rows = []
    bases = [benchmark.base_setting(name, quick, **options) for name in network or NETWORKS]
    with progress_to_stderr(json_):
        for setting in (s for base in bases for s in benchmark.combinations(base, **choices)):
            row = benchmark.measure(setting)
            names = " ".join(row[name] for name in ("network", "precision", "layout"))
            typer.echo(f"{names}: {digits(row['images_per_s'])} images/s", err=True)
            rows.append(row)
    if json_:
        tables.as_json(rows)
        return
    _show(rows)
    typer.echo(rows[0]["machine"])


def _show(rows: list[dict[str, Any]]) -> None:
    """Print the table; ratios are to each network's first row."""
    columns = ["network", "precision", "layout", "batch", "side"]
    columns += ["images/s (quartiles)", "× first", "peak GiB", "computed in"]
    first: dict[str, float] = {}
    table = []
    for row in rows:
        speed = row["images_per_s"]
        base = first.setdefault(row["network"], speed)
        spread = f"{digits(row['images_per_s_q1'])} to {digits(row['images_per_s_q3'])}"
        layout = row["layout"] + ", compiled" * row["compile"]
        settings = [row["network"], row["precision"], layout, row["batch"], row["px"]]
        speeds = [f"{digits(speed)} ({spread})", f"{speed / base:.2f}", row["peak_gib"]]
        formats = ", ".join(f"{count} × {name}" for name, count in row["formats"].items())
        table.append([*settings, *speeds, formats])
    tables.show_table(columns, table)
