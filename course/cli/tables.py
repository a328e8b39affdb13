"""Print runs, ladders and tables in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from course.runs.run import Run
from course.text import clock, digits

if TYPE_CHECKING:
    import pandas as pd


def as_json(value: Any) -> None:
    """Print a value, or the rows of a DataFrame, as indented JSON; paths become text."""
    if hasattr(value, "to_json"):
        value = json.loads(value.to_json(orient="records"))
    typer.echo(json.dumps(value, indent=1, default=str))


def run_as_dict(run: Run) -> dict[str, Any]:
    """Return a run's name, folder (for a recorded run its machine's) and complete record."""
    record, folder = run.record, run.folder
    return {
        "run": run.name,
        "folder": str(folder.parent.parent if run.is_recorded else folder),
        **(record.to_values() if record else {"status": run.status}),
    }


def progress_cells(run: Run) -> dict[str, Any]:
    """Return how far a run is: epoch, such as 12/90; the time left, "" if over; val_top1."""
    record, progress = run.record, run.progress
    # A run that was cancelled has no epochs in its record.
    epochs = max(len(record.epochs) if record else 0, progress.get("epochs", 0))
    left_s = None if record else progress.get("left_s")
    return {
        "epoch": f"{epochs}/{run.config.epochs}" if run.reports_steps else "",
        "val_top1": progress.get("val_top1"),
        "left": "" if left_s is None else clock(left_s),
    }


def show_run(run: Run) -> None:
    """Print a run for a person: status, speed, memory, loss, folder and next step."""
    from course.jobs.launch import refresh, why_queued

    status = refresh(run)
    if status not in ("ok", "queued", "running"):
        typer.echo(run.explain(), err=True)
    reason = why_queued(run, status)
    typer.echo(f"{run.name}: {status}" + f" ({reason})" * bool(reason))
    rows = dict(_measurements(run)) if run.record else {}
    rows |= {"folder": run_as_dict(run)["folder"], "next": _next_command(run, status)}
    for name, value in rows.items():
        typer.echo(f"  {name:10}{value}")


def _measurements(run: Run) -> Iterator[tuple[str, str]]:
    from course.analysis.mfu import mfu
    from course.checks.store import NOISY
    from course.runs.own_scripts import is_own, iteration_time_text
    from course.runs.ratio import few_steps

    record = run.record
    unit, count = "image", 1
    if tokens := record.config.get("context"):
        unit, count = "token", tokens
    if record.images_per_s is not None:
        speeds = (record.images_per_s, record.images_per_s_q1, record.images_per_s_q3)
        speed, low, high = (digits(value * count) for value in speeds)
        spread = f"{low} to {high}"
        steps = f"median of {record.steps_measured} steps, quartiles {spread}"
        if reason := few_steps(run):
            steps = f"{NOISY}: {reason}"
        share = mfu(run)
        yield f"{unit}s/s", f"{speed} ({steps})" + (f", MFU {share:.1%}" if share else "")
    elif is_own(run) and (text := iteration_time_text(run)):
        yield "step", text
    elif record.not_measured:
        yield f"{unit}s/s", f"not measured: {record.not_measured}"
    if record.peak_gib is not None:
        yield "memory", f"{record.peak_gib:.2f} GiB at the peak ({record.memory_kind})"
    if record.last_loss is not None:
        yield (
            "loss",
            f"{cell(record.first_loss)} at the first step, {cell(record.last_loss)} at the last",
        )
    if record.val_top1 is None and record.val_loss is not None:
        yield "val. loss", cell(record.val_loss)
    if record.val_top1 is not None:
        top5 = f", top-5 {record.val_top5:.1%}" if record.val_top5 is not None else ""
        yield "accuracy", f"{record.val_top1:.1%}{top5} (validation)"
    if record.joules_per_image is not None:
        yield "energy", f"{cell(record.joules_per_image / count)} J per {unit}"
    if record.machine:
        machine = f"{record.gpus} × {record.machine}" if record.gpus > 1 else record.machine
        hosts = record.config.get("hosts", 1)
        yield "machine", machine + f", {hosts} simulated hosts" * (hosts > 1)


def _next_command(run: Run, status: str) -> str:
    if status in ("queued", "running"):
        return f"course logs {run.name}; course cancel {run.name}"
    if run.is_recorded:
        return f"course show {run.recorded_on}/{run.name} --json has the complete record"
    error = "" if status == "ok" else " --err"
    return f"course logs {run.name}{error}; course show {run.name} --json has the complete record"


def show_ladder(table: pd.DataFrame) -> None:
    """Print a table of `report.ladder_table`, and below it how and where it was measured."""
    import pandas as pd

    rows = []
    for _, row in table.iterrows():
        if row.same_as:
            rows.append([row.rung, f"= {row.same_as}", *[""] * 5])
            continue
        speed = ["–"] * 3
        if row.status == "ok" and pd.notna(row.images_per_s):
            count = row.tokens or 1
            low, high = digits(row.images_per_s_q1 * count), digits(row.images_per_s_q3 * count)
            spread = f"{low} to {high}"
            interval = f" ({cell(row.ratio_low)} to {cell(row.ratio_high)})"
            speed = [
                f"{digits(row.images_per_s * count)} ({spread})",
                digits(row.ratio) + interval * pd.notna(row.ratio_low),
                f"{row.peak_gib:.2f}",
            ]
        rows.append([row.rung, row.status, *speed, row.last_loss, row.val_top1])
    columns = [
        "rung",
        "status",
        f"{'tokens' if table['tokens'].any() else 'images'}/s (quartiles)",
        "ratio (95 %)",
        "peak GiB",
        "loss",
        "top-1",
    ]
    show_table(columns, rows)
    for line in _ladder_notes(table[table["status"] != "not recorded"]):
        typer.echo(line)


def _ladder_notes(table: pd.DataFrame) -> Iterator[str]:
    """Yield how and where a ladder was measured, and which rungs the machine cannot run."""
    import torch

    from course.checks.store import NOISY
    from course.runs.ratio import MIN_TURNS

    turns = int(table["turns"].max()) if len(table) else 0
    if turns:
        yield f"The rungs took {turns} turns, so that a disturbance affects all of them."
        if turns < MIN_TURNS:
            yield f"With fewer than {MIN_TURNS} turns, the brackets have the extremes."
    else:
        yield "One rung ran after another: the intervals miss how the machine changed in between."
    same = table[table["same_as"] != ""]
    lacks = []
    if "device" in set(same["rung"]) and not torch.accelerator.is_available():
        lacks.append("no accelerator")
    if (table["lacks_half"] == True).any():  # noqa: E712 - a column with missing values
        lacks.append("no 16-bit hardware")
    if lacks:
        note = " The rungs from amp on compute in fp32." * same.empty
        yield f"This machine has {' and '.join(lacks)}.{note}"
    for row in table[(table["noise"] != "") & (table["same_as"] == "")].itertuples():
        yield f"{row.rung}: {NOISY}: {row.noise}."
    for row in table[table["open_todos"].str.len() > 0].itertuples():
        todos = " and ".join(map(str, row.open_todos))
        yield f"{row.rung}: TODO {todos} is still open in this script, so it changed nothing."
    for reference, names in same.groupby("same_as", sort=False)["rung"]:
        yield f"{' and '.join(names)}: the same computation as {reference}, so the true ratio is 1."
    emulated = table[table["emulated"] != ""]
    for name, rungs in emulated.groupby("emulated", sort=False)["rung"]:
        yield (
            f"{', '.join(rungs)}: this machine has no instructions for {name}; software emulates "
            f"the format, and that is slow."
        )
    table = table[table["machine"] != ""]
    yield from dict.fromkeys(table["machine"] + "; " + table["setup"])


def cell(value: Any) -> str:
    """Return a value as the text of a table's cell; a dash if it was not measured."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3g}"
    return "–" if value is None else str(value)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table in columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell(value), overflow="fold") for value in row))
    # A pipe has no width, so nothing may be cut off.
    Console(width=None if Console().is_terminal else 400).print(table)
