"""Commands about the labs themselves: exercises, checks, progress, notebooks."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, Quick, Script, SiteName, app, prints_to_stderr


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
    from course.labs import exercises as gaps

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
    from course.labs.update import update as update_clone

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
    from course import days
    from course.labs import checks

    with prints_to_stderr(json_):
        done = [
            checks.check(name, script=script, site=site, quick=not full, rerun=rerun)
            for name in names or days.checks()
        ]
    if json_:
        tables.as_json([asdict(each) for each in done])
    else:
        typer.echo("\n\n".join(map(repr, done)))
    raise typer.Exit(any(each.failed for each in done))


@app.command()
def progress(json_: AsJson = False) -> None:
    """Show which TODOs, checks and quizzes are done, and what you predicted."""
    from course.labs.progress import progress as made

    if json_:
        tables.as_json(made().to_dict())
    else:
        typer.echo(made())


@app.command()
def notebooks(
    pattern: Annotated[str, typer.Argument(help="A shell pattern for the names.")] = "*",
    script: Script = "solutions/train.py",
    site: SiteName = "local",
    quick: Quick = False,
    cell_minutes: Annotated[
        float,
        typer.Option(help="Fail a notebook if a cell takes longer, waiting time included."),
    ] = 60,
    minutes: Annotated[
        float, typer.Option(help="Fail a notebook if it takes longer; 0: no limit.")
    ] = 0,
    json_: AsJson = False,
) -> None:
    """Execute notebooks with papermill, and report on them; exit code 1 if one fails."""
    from course.workshop import rehearsal as books

    command = shlex.join(["course", *sys.argv[1:]])
    with prints_to_stderr(json_):
        done = books.rehearse(
            books.matching(pattern),
            site=site,
            script=script,
            quick=quick,
            cell_minutes=cell_minutes,
            minutes=minutes,
            command=command,
            on_outcome=tables.show_outcome,
        )
    if json_:
        tables.as_json(asdict(done) | {"report": done.report})
    else:
        typer.echo(f"report: {done.report}")
    raise typer.Exit(130 if done.interrupted else not done.passed)


class Action(StrEnum):
    """Actions on this machine's own Slurm."""

    UP, STATUS, DOWN = "up", "status", "down"


@app.command()
def slurm(
    action: Annotated[Action, typer.Argument(help="Start it, show its state, or stop it.")],
    json_: AsJson = False,
) -> None:
    """Run a real Slurm on this machine: two nodes with four fake GPUs each, in its own folder."""
    from course.jobs.cluster import control

    if action is Action.UP:
        control.up()
    ended = control.down() if action is Action.DOWN else []
    found = control.status()
    if json_:
        tables.as_json(found | {"ended": ended})
        return
    tables.show_table(["program", "state"], [[name, state] for name, state in found.items()])
    if control.environment():
        typer.echo(f"Slurm's own commands: export SLURM_CONF={control.folder() / 'slurm.conf'}")


@app.command()
def record(
    machine: Annotated[str, typer.Argument(help="Name of the recordings, such as nvidia-h100.")],
    out: Annotated[str, typer.Option(help="Folder to write to; the course's own by default.")] = "",
    only: Annotated[
        str, typer.Option(help="A shell pattern for the rungs that --list shows.")
    ] = "*",
    gpus: Annotated[
        int, typer.Option(min=1, help="GPUs here; with several, record how rungs scale.")
    ] = 1,
    list_: Annotated[bool, typer.Option("--list", help="Show the plan; run nothing.")] = False,
    variants: Annotated[
        bool, typer.Option("--variants", help="Pack the modified scripts that notebooks ran.")
    ] = False,
    searches: Annotated[
        bool, typer.Option("--searches", help="Run the searches of lab 4.4, and pack the trials.")
    ] = False,
) -> None:
    """Record rungs, sweeps and traces on this machine, for learners who do not have it."""
    from pathlib import Path

    from course.runs.run import RECORDED
    from course.workshop import record as packing

    if variants and (list_ or only != "*"):
        raise ValueError("--variants packs what notebooks ran: leave out --list and --only")
    if searches and (list_ or gpus > 1):
        raise ValueError("--searches uses one GPU and starts at once: leave out --list and --gpus")
    place = Path(out) if out else RECORDED
    if variants:
        typer.echo(packing.pack_variants(machine, place))
    elif searches:
        typer.echo(packing.record_searches(machine, place, only))
    elif list_:
        tables.show_plan(packing.plan(only, gpus))
    else:
        typer.echo(packing.record(machine, packing.plan(only, gpus), place))
