"""Commands for instructors: execute notebooks, run a Slurm here, record a machine, benchmark it."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from course.cli import tables
from course.cli.runs import AsJson, Quick, Script, SiteName, app, prints_to_stderr
from course.text import printable

if TYPE_CHECKING:
    from course.checks.lab import Planned
    from tools.rehearsal import Outcome


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
    from tools import rehearsal as books

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
            on_outcome=show_outcome,
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
    from course.jobs import own_slurm
    from tools.slurm_box import control

    if action is Action.UP:
        control.up()
    ended = control.down() if action is Action.DOWN else []
    found = control.status()
    if json_:
        tables.as_json(found | {"ended": ended})
        return
    tables.show_table(["program", "state"], [[name, state] for name, state in found.items()])
    if own_slurm.environment():
        typer.echo(f"Slurm's own commands: export SLURM_CONF={own_slurm.folder() / 'slurm.conf'}")


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
    from tools import record as packing

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
        show_plan(packing.plan(only, gpus))
    else:
        typer.echo(packing.record(machine, packing.plan(only, gpus), place))


def show_outcome(outcome: Outcome) -> None:
    """Print how a notebook's execution went, and where its output is."""
    typer.echo(f"{outcome.notebook}: {outcome.status} in {outcome.seconds:.0f} s")
    if outcome.error:
        typer.echo(f"  {printable(outcome.error)}", err=True)
    typer.echo(f"  {outcome.executed}\n  {outcome.page}")


def show_plan(planned: Sequence[Planned]) -> None:
    """Print the runs that `course record` would make: what, on how many GPUs, for what, how long.

    The end says how long all of them take, where that can be told of each.
    """
    from tools.estimate import seconds
    from tools.record import label

    lasts = seconds(planned)
    rows = [
        [
            label(config),
            str(gpus),
            purpose,
            config.device,
            config.precision,
            config.setup,
            tables.cell(about_s),
        ]
        for (config, gpus, purpose), about_s in zip(planned, lasts)
    ]
    tables.show_table(["rung", "GPUs", "for", "device", "precision", "trained on", "about s"], rows)
    if not math.isnan(whole_s := sum(lasts)):
        typer.echo(f"all of it: about {whole_s:.0f} s")
