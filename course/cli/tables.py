"""Runs and ladders as text in a terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from course.runs.run import Run
from course.text import digits

if TYPE_CHECKING:
    import pandas as pd

    from course.doctor import Check


def as_json(value: Any) -> None:
    """Print a value, or the rows of a DataFrame, as indented JSON; paths become text."""
    if hasattr(value, "to_json"):
        value = json.loads(value.to_json(orient="records"))
    typer.echo(json.dumps(value, indent=1, default=str))


def run_as_dict(run: Run) -> dict[str, Any]:
    """A run's name, folder (of a recorded one, that of its machine) and record, for `--json`."""
    record, folder = run.record, run.folder
    return {
        "run": run.name,
        "folder": str(folder.parent.parent if run.is_recorded else folder),
        **(asdict(record) if record else {"status": run.status}),
    }


def show(run: Run) -> None:
    """Print the record of a run; first, if the run is not ok, why."""
    from course.jobs.launch import explain, refresh

    refresh(run)
    if run.status not in ("ok", "queued", "running"):
        typer.echo(explain(run), err=True)
    for key, value in run_as_dict(run).items():
        if value not in ("", None, []):
            typer.echo(f"{key:18}{cell(value)}")


def show_ladder(table: pd.DataFrame) -> None:
    """Print a table of `report.ladder_table`, and under it on what it was measured."""
    import pandas as pd

    rows = []
    for _, row in table.iterrows():
        measured = ["–"] * 3
        if row.status == "ok" and pd.notna(row.images_per_s):
            spread = f"{digits(row.images_per_s_q1)} to {digits(row.images_per_s_q3)}"
            interval = f" ({cell(row.ratio_low)} to {cell(row.ratio_high)})"
            measured = [
                f"{digits(row.images_per_s)} ({spread})",
                digits(row.ratio) + interval * pd.notna(row.ratio_low),
                f"{row.peak_gib:.2f}",
            ]
        if row.same_as:
            rows.append([row.rung, f"= {row.same_as}", *[""] * 5])
            continue
        rows.append([row.rung, row.status, *measured, cell(row.last_loss), cell(row.val_top1)])
    heads = ["rung", "status", "images/s (quartiles)", "ratio (95 %)", "peak GiB", "loss", "top-1"]
    show_table(heads, rows)
    typer.echo(_how(table))
    measured = table[table["machine"] != ""]
    if sentence := _missing_hardware(table):
        typer.echo(sentence)
    for name, rows_of in measured[measured["emulated"] != ""].groupby("emulated", sort=False):
        typer.echo(
            f"{', '.join(rows_of['rung'])}: this machine has no instructions for {name}; software "
            f"emulates the format, and that is slow."
        )
    for setup in dict.fromkeys(measured["machine"] + "; " + measured["setup"]):
        typer.echo(setup)


def _missing_hardware(table: pd.DataFrame) -> str:
    """What the machine lacks, and which rungs therefore did not run; "": nothing."""
    import torch

    same = table[table["same_as"] != ""]
    lacks = []
    if "device" in set(same["rung"]) and not torch.accelerator.is_available():
        lacks.append("no accelerator")
    if table["lacks_half"].any():
        lacks.append("no 16-bit hardware")
    sentences = [f"This machine has {' and '.join(lacks)}."] if lacks else []
    sentences += [
        f"{' and '.join(names)}: the same computation as {other}, so the true ratio is 1."
        for other, names in same.groupby("same_as", sort=False)["rung"]
    ]
    if lacks and same.empty:
        sentences.append("The rungs from amp on compute in fp32.")
    return " ".join(sentences)


def _how(table: pd.DataFrame) -> str:
    from course.runs.ratio import FEWEST

    turns = table["turns"].max() if len(table) else 0
    if turns:
        few = f"\nFewer than {FEWEST}, so in brackets are the extremes." * bool(turns < FEWEST)
        return (
            f"The rungs computed in turns, {turns} of them: what disturbed one disturbed all.{few}"
        )
    return (
        "One rung ran after the other: the intervals know nothing of what the machine did between."
    )


def show_check(check: Check) -> None:
    """Print one finding of the doctor, and how to fix it."""
    colour = {"ok": "green", "note": "yellow"}.get(check.status, "red")
    typer.secho(f"{check.status:5}", fg=colour, bold=True, nl=False)
    typer.echo(f"{check.name:16}{check.found}")
    if check.fix:
        typer.echo(f"{'':21}→ {check.fix}")


def cell(value: Any) -> str:
    """A value as the text of a table's cell; a dash for what was not measured."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3g}"
    return "–" if value is None else str(value)


def show_table(heads: list[str], rows: list[list[str]]) -> None:
    """Print a table in columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(text, overflow="fold") for text in row))
    # Piped into a file there is no terminal to fit into: nothing may be cut off.
    Console(width=None if Console().is_terminal else 400).print(table)
