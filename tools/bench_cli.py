"""The command of the benchmark of three networks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from course.cli import tables
from course.cli.runs import AsJson, Quick, app, prints_to_stderr
from course.text import digits

Several = list[str] | None
Network = Annotated[
    Several, typer.Option(help="ssd300, unet3d or resnet50; all by default. Repeat.")
]
Precision = Annotated[
    Several, typer.Option(help="fp32, tf32, fp16 or bf16; by default, supported ones. Repeat.")
]
Mode = Annotated[Several, typer.Option(help="train (the default) or infer. Repeat.")]
Layout = Annotated[Several, typer.Option(help="contiguous or channels_last. Repeat.")]
Compile = Annotated[bool, typer.Option("--compile", help="Let torch.compile write the kernels.")]
Batch = Annotated[int, typer.Option(help="Per GPU; the published size by default.")]
Side = Annotated[int, typer.Option("--px", help="Pixels, or voxels, per side.")]
Data = Annotated[str, typer.Option(help="synthetic, or photographs (loaded from files).")]
Workers = Annotated[int, typer.Option(help="Processes that load photographs.")]
Gpus = Annotated[int, typer.Option(min=1, help="Number of GPUs; DDP averages the gradients.")]
Warmup = Annotated[int | None, typer.Option(help="Untimed steps; by default 100, on a CPU 1.")]
Iterations = Annotated[int | None, typer.Option(help="Timed steps; by default 300, on a CPU 3.")]


@app.command()
def bench(
    network: Network = None,
    precision: Precision = None,
    mode: Mode = None,
    layout: Layout = None,
    compile_: Compile = False,
    batch: Batch = 0,
    px: Side = 0,
    data: Data = "synthetic",
    workers: Workers = 0,
    gpus: Gpus = 1,
    warmup: Warmup = None,
    iterations: Iterations = None,
    quick: Quick = False,
    json_: AsJson = False,
) -> None:
    """Time SSD300, 3D U-Net and ResNet-50, and report in which format they really computed."""
    from labs.lab_networks import bench as benchmark
    from labs.lab_networks.catalogue import NETWORKS

    own: dict[str, Any] = {"compile": compile_, "data": data, "workers": workers, "gpus": gpus}
    own |= {"batch": batch} if batch else {}
    own |= {"px": px} if px else {}
    own |= {"warmup": warmup} if warmup is not None else {}
    own |= {"iterations": iterations} if iterations is not None else {}
    choices = {"mode": mode or ["train"], "layout": layout or ["contiguous"]}
    choices["precision"] = precision or benchmark.precisions()
    log, rows = benchmark.log_file(), []
    bases = [benchmark.base(name, quick, **own) for name in network or NETWORKS]
    with prints_to_stderr(json_):
        for setting in (each for base in bases for each in benchmark.settings(base, **choices)):
            rows.append(benchmark.bench(setting, log))
            typer.echo(_line(rows[-1]), err=True)
    if json_:
        tables.as_json(rows)
        return
    _show(rows)
    typer.echo(f"{rows[0]['machine']}; every step is in {log}")


def _line(row: dict[str, Any]) -> str:
    said = f"{row['network']} {row['mode']} {row['precision']} {row['layout']}"
    return f"{said}: {digits(row['images_per_s'])} images/s"


HEADS = ["network", "mode", "precision", "layout", "batch", "side"]
MEASURED = ["images/s (quartiles)", "× first", "peak GiB", "computed in"]


def _show(rows: list[dict[str, Any]]) -> None:
    """The table: each network's ratios are to its first row in that mode."""
    first: dict[tuple, float] = {}
    shown = []
    for row in rows:
        speed = row["images_per_s"]
        base = first.setdefault((row["network"], row["mode"]), speed)
        spread = f"{digits(row['images_per_s_q1'])} to {digits(row['images_per_s_q3'])}"
        layout = row["layout"] + ", compiled" * row["compile"]
        what = [row["network"], row["mode"], row["precision"], layout, row["batch"], row["px"]]
        measured = [
            f"{digits(speed)} ({spread})",
            f"{speed / base:.2f}",
            tables.cell(row["peak_gib"]),
        ]
        shown.append([*map(str, what), *measured, evidence(row)])
    tables.show_table(HEADS + MEASURED, shown)


def evidence(row: dict[str, Any]) -> str:
    """What was seen of the format: what products gave, and on a GPU who computed them."""
    given = ", ".join(f"{count} × {name}" for name, count in row["formats"].items())
    share = row.get("tensor_core_share")
    return given if share is None else f"{given}; {share:.0%} of the time on Tensor Cores"
