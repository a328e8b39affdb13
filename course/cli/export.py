"""The command that hands runs on to tools that draw them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, app

if TYPE_CHECKING:
    from course.runs.run import Run


class Tool(StrEnum):
    """The tools that runs can be exported to."""

    TENSORBOARD, TRACKIO, WANDB = "tensorboard", "trackio", "wandb"


@app.command()
def export(
    to: Annotated[Tool, typer.Option(help="The tool; wandb writes offline runs.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of runs; by default, all finished ones.")
    ] = None,
    search: Annotated[str, typer.Option(help="Only the trials of this search.")] = "",
    recorded: Annotated[
        str, typer.Option(help="Export runs recorded on this machine, such as nvidia-h100.")
    ] = "",
    folder: Annotated[str, typer.Option(help="Output folder; runs/exports/TOOL by default.")] = "",
    json_: AsJson = False,
) -> None:
    """Export finished runs to TensorBoard, Trackio or Weights & Biases (offline)."""
    from course.runs.trackers import export as handing

    done = handing.export(_chosen(names or [], search, recorded), to.value, folder)
    if json_:
        runs = [run.name for run in done.runs]
        tables.as_json({"folder": str(done.folder), "runs": runs, "look": done.look})
    else:
        typer.echo(done)


def _chosen(names: list[str], search: str, recorded: str) -> list[Run]:
    """The runs that are named; without names those that are over."""
    from course.runs.recordings import recorded_runs
    from course.runs.run import all_runs, get

    known = recorded_runs(recorded) if recorded else all_runs()
    if search:
        known = [run for run in known if run.launched.get("trial", {}).get("study") == search]
    if names:
        return [get(name, of=known) for name in names]
    return [run for run in known if run.record is not None]
