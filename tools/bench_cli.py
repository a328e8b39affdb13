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
    mode: Annotated[Names, typer.Option(help="train (the default) or infer. Repeatable.")] = None,
    layout: Annotated[
        Names, typer.Option(help="contiguous (the default) or channels_last. Repeatable.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the networks with torch.compile.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="Per GPU; by default the published size.")
    ] = None,
    px: Annotated[int | None, typer.Option("--px", help="Pixels, or voxels, per side.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs; DDP averages the gradients.")] = 1,
    warmup: Annotated[
        int | None, typer.Option(help="Untimed steps; by default 100, on a CPU 1.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Timed steps; by default 300, on a CPU 3.")
    ] = None,
    quick: Quick = False,
    json_: AsJson = False,
) -> None:
    """Time SSD300, 3D U-Net and ResNet-50, and report the format that they really computed in."""
    from labs.lab_networks import bench as benchmark
    from labs.lab_networks.catalogue import NETWORKS

    optional = {"batch": batch, "px": px, "warmup": warmup, "iterations": iterations}
    options = {name: value for name, value in optional.items() if value is not None}
    options |= {"compile": compile_, "gpus": gpus}
    choices = {
        "mode": mode or ["train"],
        "layout": layout or ["contiguous"],
        "precision": precision or benchmark.precisions(),
    }
    log, rows = benchmark.log_file(), []
    bases = [benchmark.base_setting(name, quick, **options) for name in network or NETWORKS]
    with progress_to_stderr(json_):
        for setting in (s for base in bases for s in benchmark.combinations(base, **choices)):
            row = benchmark.bench(setting, log)
            names = " ".join(row[name] for name in ("network", "mode", "precision", "layout"))
            typer.echo(f"{names}: {digits(row['images_per_s'])} images/s", err=True)
            rows.append(row)
    if json_:
        tables.as_json(rows)
        return
    _show(rows)
    typer.echo(f"{rows[0]['machine']}; every step is in {log}")


def _show(rows: list[dict[str, Any]]) -> None:
    """Print the table; ratios are to each network's first row in that mode."""
    columns = ["network", "mode", "precision", "layout", "batch", "side"]
    columns += ["images/s (quartiles)", "× first", "peak GiB", "computed in"]
    first: dict[tuple, float] = {}
    table = []
    for row in rows:
        speed = row["images_per_s"]
        base = first.setdefault((row["network"], row["mode"]), speed)
        spread = f"{digits(row['images_per_s_q1'])} to {digits(row['images_per_s_q3'])}"
        layout = row["layout"] + ", compiled" * row["compile"]
        settings = [row["network"], row["mode"], row["precision"], layout, row["batch"], row["px"]]
        speeds = [f"{digits(speed)} ({spread})", f"{speed / base:.2f}", row["peak_gib"]]
        table.append([*settings, *speeds, evidence(row)])
    tables.show_table(columns, table)


def evidence(row: dict[str, Any]) -> str:
    """Describe the formats of matrix products, and on a GPU the share of Tensor Cores."""
    formats = ", ".join(f"{count} × {name}" for name, count in row["formats"].items())
    share = row.get("tensor_core_share")
    return formats if share is None else f"{formats}; {share:.0%} of the time on Tensor Cores"
