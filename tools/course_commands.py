"""Commands: execute notebooks, Slurm on this machine, doctor, record a machine, update, export."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course.cli import tables
from course.cli.options import AsJson, Quick, Script, SiteName, TrustFolder, app, progress_to_stderr
from course.text import printable
from tools import bench_cli, jupyter_lab  # noqa: F401 - they add their commands
from tools.classroom import commands as _class_commands  # noqa: F401 - likewise

if TYPE_CHECKING:
    from labs.start_here.doctor import Check
    from tools.notebooks import Outcome


@app.command()
def notebooks(
    pattern: Annotated[str, typer.Argument(help="A shell pattern for the names.")] = "*",
    script: Script = "solutions/train.py",
    site: SiteName = "local",
    quick: Quick = False,
    cell_minutes: Annotated[
        float, typer.Option(help="Fail a notebook if a cell takes longer, including waiting.")
    ] = 60,
    trust_folder: TrustFolder = None,
    json_: AsJson = False,
) -> None:
    """Execute notebooks with papermill, and report on them; exit code 1 if one fails."""
    from tools import notebooks as execution

    with progress_to_stderr(json_):
        outcomes = execution.execute_all(
            execution.matching(pattern),
            site=site,
            script=script,
            quick=quick,
            cell_minutes=cell_minutes,
            on_outcome=show_outcome,
        )
    report, statuses = execution.report_path(site), {outcome.status for outcome in outcomes}
    if json_:
        tables.as_json({"report": report, "outcomes": [asdict(outcome) for outcome in outcomes]})
    else:
        typer.echo(f"report: {report}")
    raise typer.Exit(130 if execution.INTERRUPTED in statuses else statuses != {execution.OK})


def show_outcome(outcome: Outcome) -> None:
    """Print how a notebook's execution went, and where its output is."""
    typer.echo(f"{outcome.notebook}: {outcome.status} in {outcome.seconds:.0f} s")
    if outcome.error:
        typer.echo(f"  {printable(outcome.error)}", err=True)
    typer.echo(f"  {outcome.executed}\n  {outcome.page}")


class Action(StrEnum):
    """What to do with this machine's Slurm."""

    UP, STATUS, DOWN = "up", "status", "down"


@app.command()
def slurm(
    action: Annotated[Action, typer.Argument(help="Start it, show its state, or stop it.")],
    network: Annotated[
        str,
        typer.Option(help="With up: link the nodes by a network with this rate, such as 1gbit."),
    ] = "",
    shared: Annotated[
        bool, typer.Option("--shared", help="With up, as root: for all accounts of this machine.")
    ] = False,
    operator: Annotated[
        str,
        typer.Option(
            help="With --shared: an account that may see and cancel all jobs; by default the one "
            "that called sudo."
        ),
    ] = "",
    json_: AsJson = False,
) -> None:
    """Run a real Slurm on this machine: two nodes with four fake GPUs each, in its own folder."""
    import slurm_box

    if (network or shared) and action is not Action.UP:
        raise ValueError("--network and --shared: only for course slurm up")
    if operator and not shared:
        raise ValueError(f"--operator {operator}: only for course slurm up --shared")
    if action is Action.UP:
        slurm_box.up(network, shared=shared, operator=operator)
    ended = slurm_box.down() if action is Action.DOWN else []
    status = slurm_box.status()
    if json_:
        tables.as_json(status | {"ended": ended})
        return
    tables.show_table(["program", "state"], status.items())
    for name, value in slurm_box.environment().items():
        typer.echo(f"Slurm's commands need: export {name}={value}")


@app.command()
def record(
    machine: Annotated[str, typer.Argument(help="Name of the recordings, such as nvidia-h100.")],
    out: Annotated[str, typer.Option(help="Output folder; by default recordings/.")] = "",
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
        bool,
        typer.Option("--searches", help="Run the searches of labs/search, and pack the trials."),
    ] = False,
    trust_folder: TrustFolder = None,
) -> None:
    """Record rungs, sweeps and traces on this machine, for learners who do not have it."""
    from course.runs.run import RECORDED
    from tools import record as recorder

    if variants and (list_ or only != "*"):
        raise ValueError("--variants packs what notebooks ran: leave out --list and --only")
    if searches and (list_ or gpus > 1):
        raise ValueError("--searches uses one GPU and starts at once: leave out --list and --gpus")
    folder = Path(out) if out else RECORDED
    if variants:
        typer.echo(recorder.pack_variants(machine, folder))
    elif searches:
        typer.echo(recorder.record_searches(machine, folder, only))
    elif list_:
        rows = [
            [recorder.label(config), count, purpose, config.device, config.precision, config.setup]
            for config, count, purpose in recorder.plan(only, gpus)
        ]
        tables.show_table(["rung", "GPUs", "for", "device", "precision", "trained on"], rows)
    else:
        typer.echo(recorder.record(machine, recorder.plan(only, gpus), folder))


@app.command()
def update() -> None:
    """Get the newest version of the course, merged with your edits, which are backed up first."""
    from tools.update import update as update_clone

    typer.echo(update_clone())


@app.command()
def export(
    to: Annotated[str, typer.Option(help="tensorboard, trackio or wandb (offline).")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of runs; by default all finished ones.")
    ] = None,
    search: Annotated[str, typer.Option(help="Only the trials of this search.")] = "",
    recorded: Annotated[
        str, typer.Option(help="Export runs recorded on this machine, such as nvidia-h100.")
    ] = "",
    folder: Annotated[str, typer.Option(help="Output folder; runs/exports/TOOL by default.")] = "",
    json_: AsJson = False,
) -> None:
    """Export finished runs to TensorBoard, Trackio or Weights & Biases (offline)."""
    from course.runs.recordings import recorded_runs
    from course.runs.run import all_runs, get
    from labs.gpu import exports

    chosen = recorded_runs(recorded) if recorded else all_runs()
    if search:
        chosen = [run for run in chosen if run.launched.get("trial", {}).get("study") == search]
    if names:
        chosen = [get(name, of=chosen) for name in names]
    chosen = [run for run in chosen if names or run.record is not None]
    exported = exports.export(chosen, to, folder)
    if json_:
        runs = [run.name for run in exported.runs]
        tables.as_json({"folder": str(exported.folder), "runs": runs, "look": exported.look})
    else:
        typer.echo(exported)


@app.command()
def doctor(
    json_: AsJson = False,
    job: Annotated[bool, typer.Option(help="Also launch a ten-second job.")] = True,
    site: SiteName = "local",
    trust_folder: TrustFolder = None,
) -> None:
    """Check that this machine is ready. Each failure names its fix, and the exit code is 1."""
    from labs.start_here.doctor import examine

    checks = []
    with progress_to_stderr(json_):
        for check in examine(job=job, site=site):
            checks.append(check)
            if not json_:
                show_check(check)
    if json_:
        tables.as_json([asdict(check) for check in checks])
    raise typer.Exit(any(check.status == "fail" for check in checks))


def show_check(check: Check) -> None:
    """Print one result of the doctor, and how to fix it."""
    colour = {"ok": "green", "note": "yellow"}.get(check.status, "red")
    typer.secho(f"{check.status:5}", fg=colour, bold=True, nl=False)
    typer.echo(f"{check.name:16}{check.result}")
    if check.fix:
        typer.echo(f"{'':21}→ {check.fix}")
