"""Commands for learners: exercises, update, check, progress."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, SiteName, app, prints_to_stderr


@app.command()
def exercises(
    check: Annotated[
        bool, typer.Option("--check", help="Fail if exercises/ is not what solutions/ generates.")
    ] = False,
    upto: Annotated[
        int | None,
        typer.Option(
            help="Fill the TODOs up to this one, to catch up; your edits are backed up first."
        ),
    ] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Write the exercises that are missing.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Show which TODOs are filled; or write the exercise with some of them filled."""
    from course.checks import exercises as gaps

    if restore:
        names = gaps.restore()
        typer.echo(f"restored: {', '.join(names) or 'nothing, none is missing'}", err=json_)
    if check:
        if drifted := gaps.drifted():
            raise ValueError(
                f"{', '.join(drifted)} in exercises/ differs from what solutions/ generates: "
                f"edit the solution, run course exercises --upto 0, and git add exercises"
            )
        typer.echo("exercises/ is what solutions/ generates", err=json_)
    if upto is not None:
        for name, backup in gaps.catch_up(upto).items():
            kept = f"; your edits are in {backup}" if backup else ""
            typer.echo(f"exercises/{name}: TODOs filled up to {upto}{kept}", err=json_)
    states = gaps.all_states()
    if json_:
        tables.as_json(states)
    else:
        tables.show_table([*states[0]], [[str(v) for v in state.values()] for state in states])


@app.command()
def update() -> None:
    """Get the newest version of the course; files that you edited are backed up first."""
    from course.checks.update import update as update_clone

    typer.echo(update_clone())


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of checks; all by default.")
    ] = None,
    script: Annotated[str, typer.Option(help="A different script than exercises/.")] = "",
    site: SiteName = "local",
    full: Annotated[
        bool, typer.Option("--full", help="Run at full size, not the quick one.")
    ] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Measure again, even if it ran.")] = False,
    json_: AsJson = False,
) -> None:
    """Run your script and the step before it, and report what each TODO changed."""
    from course.checks import discovery
    from course.checks import verdict as checks

    with prints_to_stderr(json_):
        done = [
            checks.check(name, script=script, site=site, quick=not full, rerun=rerun)
            for name in names or discovery.checks()
        ]
    if json_:
        tables.as_json([asdict(each) for each in done])
    else:
        typer.echo("\n\n".join(map(repr, done)))
    raise typer.Exit(any(each.failed for each in done))


@app.command()
def progress(json_: AsJson = False) -> None:
    """Show which TODOs, checks and quizzes are done, and what you predicted."""
    from course.checks.progress import progress as made

    if json_:
        tables.as_json(made().to_dict())
    else:
        typer.echo(made())
