"""The command of the race."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, SiteName, app, prints_to_stderr


@app.command()
def race(
    track: Annotated[
        str, typer.Argument(help="quick, cpu, gpu or node; without: the board alone.")
    ] = "",
    script: Annotated[str, typer.Option(help="Enter this script, with SETTINGS at its top.")] = "",
    entry: Annotated[
        str, typer.Option(help="Enter one that the course ships: plain, one_cycle, …")
    ] = "",
    name: Annotated[str, typer.Option(help="What the board shows; without: the script's.")] = "",
    by: Annotated[str, typer.Option(help="Who enters it; without: your user's name.")] = "",
    verify: Annotated[
        str, typer.Option(help="Run an entry of the board again, with other seeds.")
    ] = "",
    seeds: Annotated[int | None, typer.Option(help="Runs; without: as few as count.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Of track node: how many.")] = 1,
    site: SiteName = "local",
    board: Annotated[
        str, typer.Option(help="The board's folder; without: COURSE_BOARD, or race/ in the runs.")
    ] = "",
    machine: Annotated[str, typer.Option(help="Show those whose machine is called so.")] = "",
    live: Annotated[bool, typer.Option("--live", help="Write the page anew as entries come.")] = (
        False
    ),
    json_: AsJson = False,
) -> None:
    """Race a script to an accuracy: enter it, run an entry again, or show the board."""
    from course.race import again, page
    from course.race import board as boards
    from course.race import entry as entries

    place = boards.folder(board or None)
    options = {"seeds": seeds, "site": site, "to": place}
    with prints_to_stderr(json_):
        if verify:
            outcome = again.verify(verify, **options)
            typer.echo(outcome.said, err=json_)
            raise typer.Exit(not outcome.holds)
        if script or entry:
            entered = entries.enter(track, script or entry, name=name, by=by, gpus=gpus, **options)
            typer.echo(entered.said, err=json_)
        written = page.write(place, machine=machine)
    found = boards.entries(place, track=track or None, machine=machine)
    if json_:
        tables.as_json([asdict(each) for each in found])
    else:
        tables.show_table(*page.rows(found))
        typer.echo(f"the board, with pictures: {written}")
    if live:
        page.keep_writing(place, machine)
