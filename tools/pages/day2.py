"""What README and docs show of Day 2's recorded runs: feeding one GPU, and training on several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from course.runs import recordings
from course.runs.run import Run
from course.text import digits
from course.topics.communication import report
from course.topics.loading import feeding
from course.topics.scaling import efficiency, node
from course.traces import tables
from tools.pages.markdown import markdown

HEAD = ("rung", "data", "GPUs", "images/s", "efficiency", "W, all GPUs", "J/image", "lab")
SCALED = {  # and their labs
    "channels_last": "2.3",
    "compile": "3.4",
    "algebra": "A",
    "dataloader": "2.3",
}
LAST = "channels_last"  # the rung on which ways of loading were tried
IN_SHORT = ("channels_last", "dataloader")  # what the README shows of files
FED_HEAD = (
    "run",
    "workers",
    "images/s",
    "of synthetic",
    "images/s, second epoch as a whole",
    "its first wait, ms",
    "other waits, ms",
    "host, GiB",
)
EACH = recordings.SETUP["batch_size"]  # images of a GPU and step, on synthetic data
SCALING_HEAD = (
    "rung",
    "GPUs",
    "images each",
    "images/s",
    "efficiency",
    "step, ms",
    "W, all GPUs",
    "J/image",
)
EPOCHS_HEAD = (
    "GPUs",
    "batches of a rank in an epoch",
    "epoch, s",
    "wait for its first batch, s",
    "all its other waits, s",
    "of the epoch, the first wait",
    "images/s of one worker",
    "rest of a step, ms",
)
DDP_HEAD = ("each of the GPUs trains", "step, ms", "of alone", "compiled: step, ms", "of alone")
MESSAGES_HEAD = (
    "run",
    "collectives a step",
    "MB of a rank",
    "under way, ms",
    "traced step: the GPU computes, ms",
    "of, ms",
    "other steps, ms",
)


def ladder(
    one: str = "nvidia-h200", several: str = "nvidia-h200-x4", whole: str = node.NODE
) -> str:
    """Day 2 in short, in Markdown: one machine's GPU fed with files, then another's several GPUs.

    And all of a whole node's, where that was recorded.

    Raises:
        ValueError: one of the runs is not recorded.
    """
    rows, runs, shown = [*_fed(one)], _by_name(several), {several: [], whole: []}
    for name, table in _scaled(several):
        least = 1 if name == "channels_last" else table["gpus"].max()  # of the others the last only
        for row in table.itertuples():
            run = runs[row.run]
            if row.gpus >= least and (run.config.data != "synthetic" or row.images_each == EACH):
                rows.append([name, _data(run), _gpus(run), *_measured(row), SCALED[name]])
                shown[several].append(run)
    for row in node.measured(whole).itertuples():
        gpus = f"{row.gpus} × {row.machine.split()[1]}"
        rows.append([row.rung, "synthetic", gpus, *_measured(row), SCALED[row.rung]])
    fed = _loaded(one)[0][0]
    made = [f"Lab 2.1: {fed.record.machine}, {fed.record.hardware['cores']} cores"]
    for machine in (several, whole):
        if machine in recordings.machines():
            index = recordings.load(machine)
            when = _origin(index, shown[machine])
            made.append(f"{index['machine']}: {when}, by `{index['command']}`")
    return markdown(
        HEAD,
        rows,
        source=(
            f"ResNet-50, bf16, 224 px. Synthetic rows: {EACH} images a GPU and step, median of "
            f"the steps. JPEG rows: mean of all steps; of lab 2.1 {EACH} images, of 2.3 64 a GPU, "
            f"and an earlier loader. "
            f"Efficiency: against that many single GPUs; of lab 2.1, against synthetic data. "
            f"{'. '.join(made)}."
        ),
    )


def scales(machine: str) -> str:
    """Every recorded run that tells how a machine scales, in Markdown.

    Raises:
        ValueError: a rung's runs on several GPUs are not recorded there.
    """
    rows, runs = [], _by_name(machine)
    shown = []
    for name, table in _scaled(machine):
        shown += [runs[each] for each in table["run"]]
        for row in table.itertuples():
            speed, share, *power = _measured(row, interval=True)
            step_ms = f"{row.step_s * 1e3:.1f}"
            rows.append([name, str(row.gpus), str(row.images_each), speed, share, step_ms, *power])
    said = (
        "In brackets: 95 % of the bootstrapped ratios. Of dataloader, JPEG files, images/s are "
        "those of all steps, and the step is the median"
    )
    return markdown(SCALING_HEAD, rows, source=f"{_source(machine, shown)} {said}.")


def epochs(machine: str) -> str:
    """Where the time of short epochs of files goes on several GPUs, in Markdown.

    Waits are means over the measured epochs and the ranks, the epoch's length is rank 0's.

    Raises:
        ValueError: the runs are not recorded there.
    """
    ((_, table),) = _scaled(machine, ["dataloader"])
    runs = _by_name(machine)
    rows = [_epoch(runs[name]) for name in table["run"]]
    run = runs[table["run"].iloc[0]]
    return markdown(
        EPOCHS_HEAD,
        rows,
        source=(
            f"{_source(machine)} {run.config.workers} workers a rank, {_share(run)} images for "
            f"each GPU and step, {run.record.hardware['cores']} cores."
        ),
    )


def _epoch(run: Run) -> list[str]:
    ranks = [run.rank_steps(rank)[run.config.warmup_steps :] for rank in range(run.record.gpus)]
    firsts = [steps.groupby("epoch")["load_s"].first() for steps in ranks]
    count = len(firsts[0])
    first_s = sum(each.mean() for each in firsts) / len(ranks)
    waits_s = sum(steps["load_s"].sum() for steps in ranks) / len(ranks) / count
    epoch_s = ranks[0]["step_s"].sum() / count
    rest_s = (ranks[0]["step_s"] - ranks[0]["load_s"]).median()
    return [
        str(run.record.gpus),
        f"{len(ranks[0]) / count:g}",
        f"{epoch_s:.2f}",
        f"{first_s:.2f}",
        f"{waits_s - first_s:.2f}",
        f"{first_s / epoch_s:.0%}",
        f"{_share(run) / first_s:.0f}",
        f"{rest_s * 1e3:.0f}",
    ]


def ddp_costs(path: Path) -> str:
    """What benchmarks/ddp.py wrote into a file, in Markdown: eager and compiled side by side.

    Raises:
        ValueError: the file has no compiled variants, or comes from several machines.
    """
    lines = pd.read_json(path, lines=True)
    where = lines[["machine", "ranks", "batch_size", "torch", "turns", "steps_a_turn"]]
    if len(where.drop_duplicates()) != 1 or lines["compiled"].nunique() != 2:
        raise ValueError(f"{path} must hold one run of benchmarks/ddp.py, made with --compile")
    rows = []
    for variant, both in lines.groupby("variant", sort=False):
        cells = [str(variant)]
        for row in both.sort_values("compiled").itertuples():
            low, share, high = row.ratio
            spread = f"{share:.1%} ({low:.1%} to {high:.1%})" if high > low else "100%"
            cells += [f"{row.step_ms[1]:.1f}", spread]
        rows.append(cells)
    one = where.iloc[0]
    return markdown(
        DDP_HEAD,
        rows,
        source=(
            f"{one.ranks} × {one.machine}, PyTorch {one.torch.partition('+')[0]}; ResNet-50, bf16, "
            f"channels_last, fused SGD, {one.batch_size} synthetic images each; medians and "
            f"quartiles of {one.turns} turns of {one.steps_a_turn} steps. Measured by "
            f"`torchrun --standalone --nproc-per-node {one.ranks} benchmarks/ddp.py --compile`."
        ),
    )


def messages(machine: str) -> str:
    """What the traced runs on most GPUs send in a step, and how long steps are, in Markdown.

    Raises:
        ValueError: no traced run on several GPUs is recorded there.
    """
    shown = list(report.recorded_runs(machine).values())
    if not shown:
        raise ValueError(f"no traced run on several GPUs is recorded on {machine}")
    shown.sort(key=lambda run: ("bucket" not in run.config.rung, run.config.bucket_mb))
    return markdown(
        MESSAGES_HEAD,
        map(_message, shown),
        source=(
            f"{_source(machine, shown)} {shown[0].record.gpus} GPUs, {_share(shown[0])} images "
            f"each. The middle columns are of rank 0's one traced step, the last is the median of "
            f"steps that were not traced."
        ),
    )


def _message(run: Run) -> list[str]:
    found = tables.of_run(run)
    told = report.compared({"": report.comm_report(found)}).iloc[0]
    kernels = found.kernels
    whole_s = (kernels["start_s"] + kernels["duration_s"]).max() - kernels["start_s"].min()
    computed_s = sum(end - begin for begin, end in report.computing(found))
    name = f"buckets of {run.config.bucket_mb:g} MB"
    return [
        name if "bucket" in run.config.rung else run.config.rung,
        f"{told.collectives:g}",
        f"{told.megabytes:.1f}",
        f"{told.under_way_ms:.1f}",
        f"{computed_s * 1e3:.0f}",
        f"{whole_s * 1e3:.0f}",
        f"{run.record.step_s * 1e3:.1f}",
    ]


def loading(machine: str) -> str:
    """Every way of loading files that was recorded for one GPU, in Markdown.

    Raises:
        ValueError: nothing was recorded for the machine.
    """
    rows = []
    for run, table, eats in _loaded(machine):
        epoch = run.steps[run.steps["epoch"] == 1]
        whole = run.config.batch_size * len(epoch) / epoch["step_s"].sum()
        rows.append(
            [
                run.config.rung,
                str(run.config.workers),
                f"{table.images_per_s:,.0f}",
                f"{table.images_per_s / eats:.0%}",
                f"{whole:,.0f}",
                f"{table.next_epoch_ms:,.0f}",
                f"{table.load_ms:.0f}",
                f"{table.host_gib:.1f}",
            ]
        )
    ways = (
        "dataloader, four-workers: as PyTorch has it. persistent: they stay. pinned: and copies "
        "are not waited for. everything, sixteen: and each loads 4 batches ahead. floats: as "
        "sixteen, normalised by the workers"
    )
    about = f"{run.record.machine}; {run.config.setup}, bf16. Waits are means. {ways}."
    return markdown(FED_HEAD, rows, source=about)


def _loaded(machine: str) -> list[tuple[Run, Any, float]]:
    """Runs fed from files, slowest first: each with its row of `trials`, and its appetite."""
    eats = feeding.appetites(machine).set_index(["rung", "precision"])["images_per_s"]
    found = [
        (run, next(feeding.trials([run]).itertuples()), eats[LAST, "bf16"])
        for run in recordings.recorded_runs(machine, "loading")
    ]
    return sorted(found, key=lambda each: each[1].images_per_s)


def _fed(machine: str) -> Iterator[list[str]]:
    for run, table, eats in _loaded(machine):
        if run.config.rung in IN_SHORT:
            speed, watts = table.images_per_s, run.record.watts or math.nan
            cells = _cells(speed, f"{speed / eats:.1%}", watts, watts / speed)
            yield [run.config.rung, _data(run), _gpus(run), *cells, "2.1"]


def _scaled(machine: str, rungs: Iterable[str] = SCALED) -> Iterator[tuple[str, pd.DataFrame]]:
    for name in rungs:
        found = efficiency.recorded_runs(machine, name)
        if not found:
            raise ValueError(f"{name} on several GPUs is not recorded on {machine}")
        yield name, efficiency.scaling(found)


def _measured(row: Any, *, interval: bool = False) -> list[str]:
    """Cells of a row of `scaling`: images/s, efficiency, watts, joules of an image."""
    share = f"{row.efficiency:.1%}" if row.gpus > 1 else "100%"
    if interval and row.gpus > 1 and not math.isnan(row.efficiency_low):
        share += f" ({row.efficiency_low:.1%} to {row.efficiency_high:.1%})"
    return _cells(row.images_per_s, share, row.watts, row.joules_per_image)


def _cells(speed: float, share: str, watts: float, joules: float) -> list[str]:
    """What is unknown is a dash."""
    cells = [digits(speed), share, f"{watts:,.0f}", f"{joules:.3f}"]
    return ["–" if "nan" in cell else cell for cell in cells]


def _data(run: Run) -> str:
    if run.config.data == "synthetic":
        return "synthetic"
    return f"JPEG, {run.config.workers or 'no'} workers{' each' * (run.record.gpus > 1)}"


def _gpus(run: Run) -> str:
    """How many of what: 4 × H200."""
    return f"{run.record.gpus} × {run.record.machine.split()[1]}"


def _share(run: Run) -> int:
    return run.config.batch_size // run.record.gpus


def _by_name(machine: str) -> dict[str, Run]:
    return {run.name: run for run in recordings.recorded_runs(machine)}


def _source(machine: str, runs: Iterable[Run] = ()) -> str:
    saved = recordings.load(machine)
    return (
        f"{saved['machine']} and {saved['gpus']} GPUs, {_origin(saved, runs)}, driver "
        f"{saved['driver']}; ResNet-50, 224 px. Recorded by `{saved['command']}`."
    )


def _origin(saved: dict[str, Any], runs: Iterable[Run]) -> str:
    """Of runs on one machine, on which days: they need not be of one."""
    days = sorted({run.record.started_at[:10] for run in runs}) or [saved["date"]]
    return recordings.origin(saved | {"date": " and ".join(days)})
