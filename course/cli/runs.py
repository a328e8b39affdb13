"""The `course` command."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course.cli import tables

if TYPE_CHECKING:
    import pandas as pd

    from course.config import Config
    from course.runs.run import Run


# Commands import what they need when they run: help and completion must not wait for torch.

app = typer.Typer(
    help="Make deep-learning training fast, one measured step at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small images, small batch, few steps.")]
Script = Annotated[str, typer.Option("--script", help="The training script.")]
SiteName = Annotated[str, typer.Option("--site", help="Where to run: a name of sites.toml.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the batch script that would be submitted; submit nothing."
    ),
]
RunName = Annotated[str, typer.Argument(help="The name of a run, or a unique part of it.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Set a field of the config: key=value. Repeat.")
]


def prints_to_stderr(on: bool) -> AbstractContextManager:
    """Progress goes to standard error where standard output is for JSON."""
    return redirect_stdout(sys.stderr) if on else nullcontext()


@app.command()
def doctor(
    json_: AsJson = False,
    job: Annotated[bool, typer.Option(help="Also launch a ten-second job.")] = True,
    site: SiteName = "local",
) -> None:
    """Check that this machine is ready. Each failure names its fix, and the exit code is 1."""
    from course.doctor import examine

    found = []
    with prints_to_stderr(json_):
        for check in examine(job=job, site=site):
            found.append(check)
            if not json_:
                tables.show_check(check)
    if json_:
        tables.as_json([asdict(check) for check in found])
    raise typer.Exit(any(check.status not in ("ok", "note") for check in found))


@app.command()
def data(
    as_: Annotated[
        str,
        typer.Option("--as", help="Also convert it to shards, small or raw; or make the crops."),
    ] = "files",
    data_root: Annotated[
        str | None, typer.Option(help="A different data set: a folder with train/ and val/.")
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out images that cannot be decoded.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Make the default data set, or convert a set of images, unless it is already complete."""
    from course.data import crop_set, default_set

    if data_root is not None and not data_root.strip():
        raise ValueError(
            "--data-root is empty: expected a folder with train/ and val/. Write --data-root "
            "FOLDER, or leave the option out for the default set"
        )
    if as_ not in ("files", "crops"):
        _convert(as_, data_root, skip_damaged, json_)
        return
    if data_root or skip_damaged:
        raise ValueError("--data-root and --skip-damaged go with --as shards, small or raw")
    if as_ == "crops":
        whole, blind = crop_set.ensure(), crop_set.ensure_blind()
        typer.echo(f"the crops, in {whole}; those that a race's runs are given, in {blind}-crops")
        return
    root = default_set.ensure()
    manifest = json.loads((root / default_set.MANIFEST).read_text())
    if json_:
        tables.as_json({"root": str(root), **manifest})
    else:
        typer.echo(f"{manifest['files']} JPEG files, {manifest['bytes'] / 1e6:.0f} MB, in {root}")


def _convert(kind: str, data_root: str | None, skip_damaged: bool, json_: bool) -> None:
    from course.data.formats import convert

    root = Path(data_root) if data_root else None
    try:
        folder = convert.convert(kind, root, skip_damaged=skip_damaged)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted: what is done is kept; the same command goes on", err=True)
        raise typer.Exit(130) from None
    about = convert.index(folder)
    if json_:
        tables.as_json({"root": str(folder), **about})
        return
    for name, split in about["splits"].items():
        sizes = [file["bytes"] for part in split["parts"] for file in part["files"].values()]
        left_out = f", {len(split['damaged'])} damaged left out" * bool(split["damaged"])
        typer.echo(
            f"{name}: {split['images']:,} images in {len(sizes):,} files, "
            f"{sum(sizes) / 1e6:,.0f} MB{left_out}"
        )
    typer.echo(f"in {folder}")


@app.command()
def run(
    script: Annotated[str, typer.Argument(help="The training script to run.")],
    rung: Annotated[str, typer.Option(help="The rung of the ladder.")] = "baseline",
    gpus: Annotated[int, typer.Option(help="Number of GPUs, with one process each.")] = 1,
    site: SiteName = "local",
    set_: Settings = None,
    quick: Quick = False,
    time_min: Annotated[float | None, typer.Option(help="Stop the run after N minutes.")] = None,
    rerun: Annotated[bool, typer.Option(help="Run again, even if this run exists.")] = False,
    against: Annotated[str, typer.Option(help="A run to repeat in turns with it.")] = "",
    wait: Annotated[bool, typer.Option(help="Follow the run until it is over.")] = True,
    dry_run: DryRun = False,
    json_: AsJson = False,
) -> None:
    """Launch one run of SCRIPT, follow it, and print what it measured."""
    from course.config import parse_settings
    from course.config import rung as rung_of
    from course.jobs import launch, plan
    from course.runs.run import get

    config = rung_of(rung, quick=quick, **parse_settings(set_ or []))
    if dry_run:
        typer.echo(plan.preview(script, config, site=site, gpus=gpus, time_min=time_min))
        return
    with prints_to_stderr(json_):
        launched = launch.launch(
            script,
            config,
            site=site,
            gpus=gpus,
            time_min=time_min,
            rerun=rerun,
            against=get(against) if against else None,
        )
        if wait:
            launch.wait(launched, check=False)
    _tell(launched, waited=wait, json_=json_)


def _tell(launched: Run, *, waited: bool, json_: bool) -> None:
    """Print what a run measured, or why it failed; exit code 1 if it failed."""
    from course.jobs.launch import explain, refresh

    failed = waited and refresh(launched) not in ("ok", "queued", "running")
    if json_:
        tables.as_json(tables.run_as_dict(launched))
    elif failed:
        typer.echo(f"{explain(launched)}\nIts record: course show {launched.name}", err=True)
    elif waited:
        tables.show(launched)
    if failed:
        raise typer.Exit(1)


@app.command()
def ladder(
    script: Script = "solutions/train.py",
    site: SiteName = "local",
    set_: Settings = None,
    quick: Quick = False,
    rerun: Annotated[bool, typer.Option(help="Measure again.")] = False,
    compile_: Annotated[
        bool,
        typer.Option("--compile", help="Also run fused and compile (minutes on a CPU)."),
    ] = False,
    picture: Annotated[
        bool, typer.Option("--picture", help="Also draw it, next to a recorded GPU.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Run every rung, and print the ladder that was measured on this machine."""
    from course.checks import report
    from course.config import COMPILED, LADDER, parse_settings, rung
    from course.jobs import launch

    rungs = [*LADDER, *(COMPILED if compile_ else ())]
    settings = parse_settings(set_ or [])
    configs = [rung(name, quick=quick, **settings) for name in rungs]
    same_as = _same_as(configs) if site == "local" else {}
    configs = [config for config in configs if config.rung not in same_as]
    with prints_to_stderr(json_):
        launched = launch.launch_all(script, configs, turns=True, site=site, rerun=rerun)
        launch.wait(launched, check=False)
    table = report.ladder_table(launched, same_as)
    if json_:
        tables.as_json(table)
    else:
        tables.show_ladder(table)
    if picture:
        typer.echo(_drawn(table, rungs), err=json_)
    bad = [each for each in launched if each.status != "ok"]
    for each in bad:
        typer.echo(launch.explain(each), err=True)
    raise typer.Exit(bool(bad))


def _same_as(configs: list[Config]) -> dict[str, str]:
    """Rungs that compute the same on this machine as a rung before them, and that rung."""
    from dataclasses import replace

    from course.training.precision import default_device, resolve

    first: dict[tuple[str, Config], str] = {}
    same_as = {}
    for config in configs:
        computed = replace(resolve(config), rung="any", device="cpu")
        other = first.setdefault((default_device(config).type, computed), config.rung)
        if other != config.rung:
            same_as[config.rung] = other
    return same_as


def _drawn(table: pd.DataFrame, rungs: list[str]) -> str:
    """Draw the ladder next to a recorded one, and return a sentence with the picture's path."""
    from course import charts
    from course.checks.ladder import BESIDE
    from course.runs import recordings
    from course.runs.run import runs_root

    path = runs_root() / "ladder.png"
    charts.ladder(table, beside=recordings.large(BESIDE, rungs)).savefig(path)
    return f"drawn: {path}; a picture of each run: {runs_root()}/*/report.png"


@app.command()
def runs(json_: AsJson = False) -> None:
    """List all runs with their status and what they measured."""
    from course.jobs import launch
    from course.runs.run import all_runs, find_runs

    for each in all_runs():
        launch.refresh(each)
    table = find_runs()
    if json_:
        tables.as_json(table)
        return
    heads = ["run", "status", "images_per_s", "peak_gib", "last_loss", "started_at"]
    tables.show_table(heads, [[tables.cell(value) for value in row] for row in table[heads].values])


@app.command()
def queue(json_: AsJson = False) -> None:
    """List the runs that are queued or running, and why they are queued."""
    from course.jobs import queue as queues

    table = queues.table()
    if json_:
        tables.as_json(table)
    elif table.empty:
        typer.echo(queues.EMPTY)
    else:
        shown = queues.as_text(table)
        tables.show_table([*shown.columns], shown.values.tolist())


@app.command()
def cancel(
    names: Annotated[list[str] | None, typer.Argument(help="Runs to cancel.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Cancel every queued or running run.")
    ] = False,
) -> None:
    """Cancel queued or running runs; finished runs stay as they are."""
    from course.jobs import launch
    from course.runs.run import all_jobs, get

    if not names and not all_:
        raise ValueError("name the runs to cancel, or use --all; course queue lists them")
    jobs = all_jobs()
    runs = [get(name, of=jobs) for name in names or []]
    runs += [run for run in jobs if all_ and run.record is None and run not in runs]
    for run in launch.cancel_all(runs):
        typer.echo(run)


def _find(name: str) -> Run:
    """The run or job of this name, or the recorded run: NAME, or MACHINE/NAME."""
    from course.runs import recordings
    from course.runs.run import all_jobs, get

    machine, _, own_name = name.rpartition("/")
    recorded = [
        run
        for each in recordings.machines()
        for run in recordings.recorded_runs(each)
        if run.name == own_name and machine in ("", each)
    ]
    jobs = all_jobs()
    if not recorded or name in [job.name for job in jobs]:
        return get(name, of=jobs)
    if len(recorded) > 1:
        names = ", ".join(f"{run.recorded_on}/{run.name}" for run in recorded)
        raise ValueError(f"several recorded runs are called {name!r}: choose {names}")
    return recorded[0]


@app.command()
def show(name: RunName, json_: AsJson = False) -> None:
    """Show one run, recorded run or batch job: its record, and where its files are."""
    found = _find(name)
    if json_:
        tables.as_json(tables.run_as_dict(found))
    else:
        tables.show(found)


@app.command()
def logs(
    name: RunName,
    err: Annotated[bool, typer.Option("--err", help="Standard error, not output.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="How many lines from the end.")] = 40,
    json_: AsJson = False,
) -> None:
    """Print the last lines of a run's log."""
    from course.runs.logs import text

    found = _find(name)
    if found.is_recorded:
        raise ValueError(f"{name} is a recorded run, which has no logs: course show {name}")
    ending = text(found, err=err, lines=lines)
    if json_:
        tables.as_json({"run": found.name, "files": [str(p) for p in found.logs], "text": ending})
    else:
        typer.echo(ending or f"(empty; see also {'without ' if err else ''}--err)")
