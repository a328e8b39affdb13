"""The command of the race."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from course.cli import tables
from course.cli.options import AsJson, SiteName, TrustFolder, Yes, app, confirm, progress_to_stderr


@app.command()
def race(
    track: Annotated[
        str, typer.Argument(help="quick, cpu, gpu or node; without it, show all boards.")
    ] = "",
    script: Annotated[str, typer.Option(help="Enter this script, with SETTINGS in it.")] = "",
    entry: Annotated[str, typer.Option(help="Enter a script of the course: plain, fast, …")] = "",
    name: Annotated[str, typer.Option(help="Name on the board; by default the script's.")] = "",
    by: Annotated[str, typer.Option(help="Author; by default your user name.")] = "",
    verify: Annotated[
        str, typer.Option(help="Run an entry again, with new seeds, after you have read it.")
    ] = "",
    yes: Yes = False,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs; by default the track's minimum.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs, for track node.")] = 1,
    site: SiteName = "local",
    board: Annotated[
        str, typer.Option(help="Folder of the board; by default COURSE_BOARD or RUNS/race.")
    ] = "",
    machine: Annotated[str, typer.Option(help="Show only entries from this machine.")] = "",
    live: Annotated[bool, typer.Option("--live", help="Update the page for new entries.")] = False,
    trust_folder: TrustFolder = None,
    json_: AsJson = False,
) -> None:
    """Race a script to an accuracy: enter it, run an entry again, or show the board."""
    from race import page, submission
    from race.board import board_folder, read_entries
    from race.tracks import find_track
    from race.verification import verify as run_again

    if track:
        find_track(track)  # otherwise a wrong name would show an empty board
    if script and entry:
        raise ValueError("--script and --entry exclude each other: choose one")
    folder = board_folder(board)
    with progress_to_stderr(json_):
        if verify:
            asked = partial(_ask, yes=yes)
            outcome = run_again(verify, seeds=seeds, site=site, to=folder, confirm=asked)
            typer.echo(outcome.summary)
            raise typer.Exit(not outcome.holds)
        if entry:
            submission.course_script(entry)  # a wrong name lists the entries, not scripts
        if script or entry:
            options = {"seeds": seeds, "gpus": gpus, "site": site, "to": folder, "by": by}
            entered = submission.enter(track, script or entry, name=name, **options)
            typer.echo(entered.summary)
        path = page.board_page(folder, machine=machine)
    entries = read_entries(folder, track=track, machine=machine)
    if json_:
        tables.as_json([asdict(entry) for entry in entries])
    else:
        tables.show_table(*page.rows(entries))
        typer.echo(f"the board, with pictures: {path}")
    if live:
        page.keep_writing(path, folder, machine)


def _ask(introduction: str, *, yes: bool) -> None:
    """Print what will run as this user, and ask whether it may."""
    typer.echo(introduction, err=True)
    confirm("Have you read the script, and may it run?", yes=yes)
