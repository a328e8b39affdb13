"""Commands for runs: launch them, compare them, list and show them, cancel them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course.cli import tables
from course.cli.options import (
    AsJson,
    Quick,
    Rerun,
    RunName,
    Script,
    Settings,
    SiteName,
    TrustFolder,
    app,
    progress_to_stderr,
    wait_for,
)

if TYPE_CHECKING:
    import pandas as pd

    from course.config import Config
    from course.runs.run import Run


@app.command()
def data(
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            "--data-root",
            help="A set of your own: a folder with ImageNet's tar files, train/ and val/, "
            "parquet files or shards.",
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="The folder that is made.")] = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="What to make: shards, small, raw or files; or the crops. [default: shards"
            " of your own set, else files]",
        ),
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out images that cannot be decoded.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Make the default data set, or convert a set of images, unless it is already complete."""
    from course.data import crop_set, default_set

    if from_ or as_ not in (None, "files", "crops"):
        _convert(as_ or "shards", from_, to, skip_damaged, json_)
        return
    if to or skip_damaged:
        raise ValueError("--to and --skip-damaged require --from, or --as shards, small or raw")
    if as_ == "crops":
        folder, training = crop_set.ensure(), crop_set.ensure_blind()
        typer.echo(f"the crops are in {folder}; those without validation in {training}-crops")
        return
    root = default_set.ensure()
    manifest = json.loads((root / default_set.MANIFEST).read_text())
    if json_:
        tables.as_json({"root": str(root), **manifest})
    else:
        typer.echo(f"{manifest['files']} JPEG files, {manifest['bytes'] / 1e6:.0f} MB, in {root}")


def _convert(
    kind: str, root: Path | None, to: Path | None, skip_damaged: bool, json_: bool
) -> None:
    from course.data import folders
    from course.data.formats import convert

    try:
        folder = convert.convert_set(kind, root, to, skip_damaged=skip_damaged)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; the same command continues where it stopped", err=True)
        raise typer.Exit(130) from None
    index = folders.index(folder)
    if json_:
        tables.as_json({"root": str(folder), **index})
        return
    for name, split in index["splits"].items():
        names = [name for part in split["parts"] for name in part["files"]]
        size_mb = sum((folder / name).stat().st_size for name in names) / 1e6
        damaged = f", {len(split['damaged'])} damaged ones left out" * bool(split["damaged"])
        typer.echo(
            f"{name}: {split['images']:,} images in {len(names):,} files, "
            f"{size_mb:,.0f} MB{damaged}"
        )
    typer.echo(f"in {folder}")
    if root:
        typer.echo(
            f"course run solutions/train.py --set data=imagenet "
            f"--set data_root={shlex.quote(str(folder))} --set format={kind}"
        )


def check_name(name: str) -> str:
    """Return the name of a run, if a folder may have it."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59}", name):
        raise ValueError(f"--name {name!r}: expected letters, digits, _ . or -, at most 60")
    return name


@app.command()
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Of a script of your own: -- --lr 1e-3 …")
    ] = None,
    name: Annotated[str, typer.Option(help="The run's name, for a script of your own.")] = "",
    rung: Annotated[str, typer.Option(help="The rung of the ladder.")] = "baseline",
    gpus: Annotated[int, typer.Option(help="Number of GPUs, with one process each.")] = 1,
    site: SiteName = "local",
    set_: Settings = None,
    quick: Quick = False,
    time_min: Annotated[float | None, typer.Option(help="Stop the run after N minutes.")] = None,
    rerun: Rerun = False,
    against: Annotated[str, typer.Option(help="Take turns with a repetition of this run.")] = "",
    wait: Annotated[bool, typer.Option(help="Follow the run until it ends.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script, and submit nothing.")
    ] = False,
    trust_folder: TrustFolder = None,
    json_: AsJson = False,
) -> None:
    """Launch one run of SCRIPT, follow it, and print what it measured.

    A script of your own runs in the current folder, with its arguments after --.
    """
    from course import config as configs
    from course.jobs import launch, plan
    from course.runs import scripts
    from course.runs.run import get
    from course.text import read_utf8

    settings = configs.parse_settings(set_ or [])
    source = plan.find_script(script)
    if known := plan.script_of(source):
        settings = {"script": known} | settings
    config = configs.rung(rung, quick=quick, **settings)
    options = {"site": site, "gpus": gpus, "time_min": time_min}
    is_quick = quick and context.get_parameter_source("quick").name == "COMMANDLINE"
    has_settings = bool(set_) or is_quick or rung != "baseline"
    if scripts.calls(read_utf8(source), "recording"):
        if arguments or name:
            raise ValueError(
                f"{script} reads a config, and has neither arguments nor --name: --set"
            )
    elif has_settings and (arguments or name):
        raise ValueError(
            f"{script} reads no config: leave out --rung, --set and --quick, and give it its "
            f"arguments after --"
        )
    elif not has_settings:
        config = replace(configs.rung(rung), rung=check_name(name or source.stem))
        options["arguments"] = arguments or []
    if dry_run:
        typer.echo(plan.preview(script, config, **options))
        return
    with progress_to_stderr(json_):
        baseline = get(against) if against else None
        launched = launch.launch(script, config, **options, rerun=rerun, against=baseline)
        if wait and not launched.is_recorded:
            wait_for([launched])
    if json_:
        tables.as_json(tables.run_as_dict(launched))
    elif wait:
        tables.show_run(launched)
        if baseline:
            from course.checks.report import describe_speedup

            for sentence in describe_speedup(launched, baseline):
                typer.echo(f"  {sentence}")
    if wait and launch.refresh(launched) not in ("ok", "queued", "running"):
        raise typer.Exit(1)


@app.command()
def resume(
    name: RunName,
    gpus: Annotated[int | None, typer.Option(help="Another number of GPUs.")] = None,
    site: Annotated[str | None, typer.Option(help="Another site.")] = None,
    set_: Settings = None,
    time_min: Annotated[float | None, typer.Option(help="Stop the run after N minutes.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow the run until it ends.")] = True,
    trust_folder: TrustFolder = None,
) -> None:
    """Continue a run from its newest checkpoint, perhaps on another number of GPUs."""
    from course.config import parse_settings
    from course.jobs import launch
    from course.runs.run import get

    options = {"site": site, "gpus": gpus, "time_min": time_min}
    launched = launch.resume(get(name), parse_settings(set_ or []), **options)
    if wait:
        wait_for([launched])
        tables.show_run(launched)
        if launch.refresh(launched) not in ("ok", "queued", "running"):
            raise typer.Exit(1)


@app.command()
def ladder(
    script: Script = "solutions/train.py",
    site: SiteName = "local",
    set_: Settings = None,
    quick: Quick = False,
    rerun: Rerun = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Also run fused and compile (minutes on a CPU).")
    ] = False,
    picture: Annotated[
        bool, typer.Option("--picture", help="Also draw it, next to a recorded GPU.")
    ] = False,
    trust_folder: TrustFolder = None,
    json_: AsJson = False,
) -> None:
    """Run every rung, and print the ladder that was measured on this machine."""
    from course.checks import report
    from course.config import COMPILED, LADDER, LADDERS, parse_settings, rung
    from course.jobs import launch, plan

    name = plan.script_of(plan.find_script(script))
    rungs, compiled = LADDERS.get(name, (LADDER, COMPILED))
    rungs = [*rungs, *(compiled if compile_ else ())]
    settings = parse_settings(set_ or [])
    configs = [rung(name, quick=quick, **settings) for name in rungs]
    same_as = _same_computations(configs) if site == "local" else {}
    configs = [config for config in configs if config.rung not in same_as]
    with progress_to_stderr(json_):
        if site.startswith("recorded-"):
            launched = _recorded_runs(script, configs, site)
        else:
            launched = launch.launch_all(script, configs, turns=True, site=site, rerun=rerun)
            wait_for(launched)
    table = report.ladder_table(launched, same_as)
    table = table.set_index("rung").reindex(rungs).reset_index()
    table = table.fillna({"status": "not recorded", "same_as": "", "machine": ""})
    if json_:
        tables.as_json(table)
    else:
        tables.show_ladder(table)
    if picture:
        typer.echo(_draw(table, rungs), err=json_)
    failed = [run for run in launched if run.status != "ok"]
    for run in failed:
        typer.echo(run.explain(), err=True)
    raise typer.Exit(bool(failed))


def _recorded_runs(script: str, configs: list[Config], site: str) -> list[Run]:
    """Return the recorded runs of these configs; raise the last error if there are none."""
    from course.jobs.launch import launch

    runs, missing = [], None
    for config in configs:
        try:
            runs.append(launch(script, config, site=site))
        except ValueError as error:
            missing = error
    if missing and not runs:
        raise missing
    return runs


def _same_computations(configs: list[Config]) -> dict[str, str]:
    """Return rungs that compute the same here as an earlier rung, with that rung."""
    from dataclasses import replace

    from course.training.precision import default_device, resolve

    first: dict[tuple[str, Config], str] = {}
    same_as = {}
    for config in configs:
        computed = replace(resolve(config), rung="any", device="cpu")
        earlier = first.setdefault((default_device(config).type, computed), config.rung)
        if earlier != config.rung:
            same_as[config.rung] = earlier
    return same_as


def _draw(table: pd.DataFrame, rungs: list[str]) -> str:
    """Draw the ladder next to a recorded one, and return a sentence with the picture's path."""
    from course import charts
    from course.checks.ladder import BESIDE
    from course.runs import recordings
    from course.runs.run import runs_root

    path = runs_root() / "ladder.png"
    picture = charts.plot_ladder(table, reference=recordings.full_batch_ladder(BESIDE, rungs))
    picture.savefig(path)
    return f"drawn: {path}; a picture of each run: {runs_root()}/*/report.png"


@app.command()
def plan(
    rung: Annotated[str, typer.Option(help="The rung of the training.")] = "imagenet",
    site: SiteName = "local",
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 1,
    set_: Settings = None,
    basis: Annotated[
        str, typer.Option("--from", help="A recorded machine, or a run of the same step.")
    ] = "nvidia-h200",
    time_min: Annotated[float | None, typer.Option(help="Minutes of each job.")] = None,
    json_: AsJson = False,
) -> None:
    """Estimate what a complete training needs: time, jobs, memory, disk, energy.

    Nothing is started. The last column names what each number is based on.
    """
    from course import config as configs
    from course.analysis.long_runs import plan_training
    from course.jobs import sites
    from course.runs import recordings

    config = configs.rung(rung, **configs.parse_settings(set_ or []))
    chosen = sites.get(site)
    if time_min is not None:
        chosen = replace(chosen, time_min=time_min)
    recorded = recordings.machines()
    try:
        source = basis if basis in recorded else _find(basis)
    except ValueError as error:
        raise ValueError(f"{error}. Recorded machines: {', '.join(recorded)}") from None
    table = plan_training(config, chosen, gpus, source)
    if json_:
        tables.as_json(table)
    else:
        tables.show_table([*table.columns], table.values)


@app.command()
def runs(json_: AsJson = False) -> None:
    """List all runs with their status and what they measured."""
    from course.jobs import launch
    from course.runs.run import all_runs, find_runs

    for launched in all_runs():
        launch.refresh(launched)
    table = find_runs()
    progress = {run.name: tables.progress_cells(run) for run in all_runs()}
    for name in ("epoch", "left"):
        table[name] = [progress[run][name] for run in table["run"]]
    table["val_top1"] = table["val_top1"].fillna(
        table["run"].map({run: cells["val_top1"] for run, cells in progress.items()})
    )
    if json_:
        tables.as_json(table)
    else:
        columns = "run status epoch val_top1 left images_per_s peak_gib last_loss started_at"
        tables.show_table(columns.split(), table[columns.split()].values)


@app.command()
def compare(
    run: RunName,
    against: Annotated[str, typer.Argument(help="The run to compare with.")],
    json_: AsJson = False,
) -> None:
    """Print how many times as fast RUN is as AGAINST, and in what the two differ."""
    from course.runs import own_scripts

    top, bottom = _find(run), _find(against)
    ratio = own_scripts.speed_ratio(top, bottom)
    changes, noise = own_scripts.source_changes(top, bottom), ratio.noise()
    if json_:
        values = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "noise": noise}
        tables.as_json(values | {"turns": ratio.turns, "changes": changes})
        return
    typer.echo(
        f"{top.name} is {ratio} as fast as {bottom.name}" + f": too noisy, {noise}" * bool(noise)
    )
    typer.echo("\n".join(changes or ["Their scripts and settings are equal."]))


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
        tables.show_table([*shown.columns], shown.values)


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
    chosen = [get(name, of=jobs) for name in names or []]
    chosen += [job for job in jobs if all_ and job.record is None and job not in chosen]
    for job in launch.cancel(chosen):
        typer.echo(job)


def _find(name: str) -> Run:
    """Return the run or job of this name, or the recorded run: NAME, or MACHINE/NAME."""
    from course.runs import recordings
    from course.runs.run import all_jobs, get

    recorded = [
        run
        for machine in recordings.machines()
        for run in recordings.recorded_runs(machine)
        if name in (run.name, f"{machine}/{run.name}")
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
    """Show a run, recorded run or batch job: what it measured, where its files are, what is next.

    With --json, print its complete record.
    """
    run = _find(name)
    if json_:
        tables.as_json(tables.run_as_dict(run))
    else:
        tables.show_run(run)


@app.command()
def logs(
    name: RunName,
    err: Annotated[bool, typer.Option("--err", help="Standard error instead of output.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines from the end.")] = 40,
) -> None:
    """Print the last lines of a run's log."""
    run = _find(name)
    if run.is_recorded:
        raise ValueError(f"{name} is a recorded run, which has no logs: course show {name}")
    tail = run.tail(lines, err=err)
    typer.echo(tail or f"(empty; see also {'without ' if err else ''}--err)")
