"""Commands for learners: exercises, check, progress."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from course.cli import tables
from course.cli.options import AsJson, Rerun, SiteName, TrustFolder, app, progress_to_stderr


@app.command()
def exercises(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these; by default, all.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Fail if exercises/ is not what solutions/ generates.")
    ] = False,
    upto: Annotated[
        str,
        typer.Option(
            help="Fill the exercises up to this one that are open, or failed their last check; "
            "keep the others. They count as given. What you edited is backed up first."
        ),
    ] = "",
    reset: Annotated[
        bool, typer.Option("--reset", help="Empty all exercises, or only NAMES; same backups.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Write the exercises that are missing.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Show which exercises are filled; or write the scripts with some of them filled."""
    from course.checks import exercise_files as files
    from course.checks import exercises as scripts
    from course.checks import shared_progress

    if upto and (reset or names):
        raise ValueError("--upto NAME takes neither --reset nor further names: leave them out")
    for name in names or ():
        scripts.solution_of(name)  # or raise
    if restore:
        missing = files.restore()
        typer.echo(f"restored: {', '.join(missing) or 'nothing, none is missing'}", err=json_)
    if check:
        if drifted := files.drifted():
            raise ValueError(
                f"{', '.join(drifted)} in exercises/ differs from what solutions/ generates: "
                f"edit the solution, run course exercises --reset, and git add exercises"
            )
        typer.echo("exercises/ is what solutions/ generates", err=json_)
    if upto or reset:
        files.restore()
        before = {row["todo"]: row["state"] for row in scripts.all_states()}
        written = files.catch_up(upto) if upto else files.reset(names or ())
        for name, backup in written.items():
            after = scripts.states(name)
            states = [(row["todo"], before[row["todo"]], row["state"]) for row in after]
            kept = [todo for todo, was, now in states if was == now != "open"]
            wanted, verb = ("given", "filled") if upto else ("open", "emptied")
            changed = [todo for todo, was, now in states if was != now == wanted]
            done = f"{verb} {', '.join(changed) or 'none'}"
            done += f"; kept {', '.join(kept)}" * bool(kept)
            edits = f"; the file as it was is {backup}" if backup else ""
            typer.echo(f"exercises/{name}: {done}{edits}", err=json_)
        shared_progress.send()  # what is given now
    states = [row for row in scripts.all_states() if not names or row["todo"] in names]
    if json_:
        tables.as_json(states)
    else:
        tables.show_table([*states[0]], [state.values() for state in states])


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of checks; without any, list them.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run every check.")] = False,
    script: Annotated[str, typer.Option(help="A different script than exercises/.")] = "",
    site: SiteName = "local",
    full: Annotated[bool, typer.Option("--full", help="Run at full size, not quick.")] = False,
    rerun: Rerun = False,
    trust_folder: TrustFolder = None,
    json_: AsJson = False,
) -> None:
    """Run your script and the step before it, and report what each TODO changed."""
    from course.checks import discovery, verdict
    from course.checks.progress import progress as read_progress

    if not names and not all_:
        states = read_progress().checks
        states = states[states["check"].isin(discovery.exercises())]
        if json_:
            tables.as_json(states)
        else:
            tables.show_table([*states.columns], states.values)
            typer.echo("\nRun one with: course check NAME; or all of them with: course check --all")
        return
    with progress_to_stderr(json_):
        options = {"script": script, "site": site, "quick": not full, "rerun": rerun}
        checked = [verdict.check(name, **options) for name in names or discovery.exercises()]
    if json_:
        tables.as_json([asdict(result) for result in checked])
    else:
        typer.echo("\n\n".join(map(repr, checked)))
    raise typer.Exit(any(result.failed for result in checked))


@app.command()
def progress(
    all_: Annotated[
        bool, typer.Option("--all", help="List every TODO, check, quiz and prediction.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Show what is done: by day, and the labs that you began, with the next one."""
    from course.checks.progress import progress as read_progress

    if json_:
        tables.as_json(read_progress().to_dict())
    else:
        typer.echo(read_progress(everything=all_))
