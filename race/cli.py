"""The command of the race."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, SiteName, app, prints_to_stderr

Track = Annotated[str, typer.Argument(help="quick, cpu, gpu or node; without it, show the board.")]
Mine = Annotated[str, typer.Option("--script", help="Enter this script, with SETTINGS in it.")]
Shipped = Annotated[str, typer.Option(help="Enter a script of the course: plain, fast, …")]
Name = Annotated[str, typer.Option(help="Name on the board; the script's by default.")]
By = Annotated[str, typer.Option(help="Who enters it; your user name by default.")]
Verify = Annotated[str, typer.Option(help="Run an entry again, with new seeds.")]
Seeds = Annotated[int | None, typer.Option(help="Number of runs; the track's minimum by default.")]
Gpus = Annotated[int, typer.Option(min=1, help="Number of GPUs, for track node.")]
Board = Annotated[
    str, typer.Option(help="Folder of the board; COURSE_BOARD or RUNS/race by default.")
]
Machine = Annotated[str, typer.Option(help="Show only entries from this machine.")]
Live = Annotated[bool, typer.Option("--live", help="Update the page as entries arrive.")]


@app.command()
def race(
    track: Track = "",
    script: Mine = "",
    entry: Shipped = "",
    name: Name = "",
    by: By = "",
    verify: Verify = "",
    seeds: Seeds = None,
    gpus: Gpus = 1,
    site: SiteName = "local",
    board: Board = "",
    machine: Machine = "",
    live: Live = False,
    json_: AsJson = False,
) -> None:
    """Race a script to an accuracy: enter it, run an entry again, or show the board."""
    from race import again, page, tracks
    from race import board as boards
    from race import entry as entries

    if track:
        tracks.get(track)  # or a name that is wrong would show an empty board
    if script and entry:
        raise ValueError("--script and --entry exclude each other: choose one")
    place = boards.folder(board or None)
    with prints_to_stderr(json_):
        if verify:
            outcome = again.verify(verify, seeds=seeds, site=site, to=place)
            typer.echo(outcome.said)
            raise typer.Exit(not outcome.holds)
        if entry:
            entries.shipped(entry)  # a name that is wrong lists the entries, not scripts
        if script or entry:
            own = {"seeds": seeds, "gpus": gpus, "site": site, "to": place, "by": by}
            typer.echo(entries.enter(track, script or entry, name=name, **own).said)
        written = page.write(place, machine=machine)
    _show(place, written, track, machine, json_)
    if live:
        page.keep_writing(place, machine)


def _show(place: Path, written: Path, track: str, machine: str, json_: bool) -> None:
    """The board, in the terminal or for a program."""
    from race import board, page

    found = board.entries(place, track=track or None, machine=machine)
    if json_:
        tables.as_json([asdict(each) for each in found])
        return
    tables.show_table(*page.rows(found))
    typer.echo(f"the board, with pictures: {written}")
