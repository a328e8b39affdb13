"""What runs in shards kept, gathered and lost, and what recorded ones paid for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from course.analysis.communication import computing
from course.analysis.traces import tables
from course.analysis.traces.collectives import NCCL
from course.analysis.traces.intervals import intervals_of, merge_intervals, overlap_s
from course.runs import recordings

if TYPE_CHECKING:
    from course.analysis.traces.tables import Trace
    from course.runs.run import Run

PURPOSE = "sharding"
MIB = 2**20
# What FSDP2 does beside the network's own work: parts are put into one message and taken out.
COPIES = r"fsdp::|aten::(?:split_with_sizes_copy|_chunk_cat|_foreach_copy_)"
CASTS = r"aten::(?:_to_copy|copy_|to)$"
ENOUGH, SMALLER = 0.8, 0.75  # of DDP's images/s, at so much of its peak: the lab's aim


def kept_by(runs: Mapping[str, Run]) -> pd.DataFrame:
    """MiB that rank 0 of each run keeps between steps: columns run, kind, mib.

    Gradients are those of the first update; all are counted tensor by tensor, on any device.
    """
    rows = []
    for name, run in runs.items():
        found = _evidence(run)["spread"]["bytes"]
        rows += [(name, kind, size / MIB) for kind, size in found.items()]
    return pd.DataFrame(rows, columns=["run", "kind", "mib"])


def gathered(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Collectives of the first step: columns all-gathers in forward and backward, and others."""
    table = {}
    for name, run in runs.items():
        seen = _evidence(run)
        sent, times = seen.get("collectives", {}), seen.get("gathers", {})
        table[name] = {
            "all-gathers, forward": sum(times.get("forward", [])),
            "all-gathers, backward": sum(times.get("backward", [])),
            "reduce-scatters": sent.get("_reduce_scatter_base", 0),
            "all-reduces": sent.get("allreduce", 0),
        }
    return pd.DataFrame.from_dict(table, orient="index")


def _evidence(run: Run) -> dict:
    return run.ranks[0]["evidence"] if run.ranks else run.record.evidence


def losses(runs: Mapping[str, Run]) -> pd.DataFrame:
    """The loss of each step over all images of the batch: the mean of the ranks'. A column a run.

    Rows are steps of the whole training: one that goes on from a checkpoint begins where its epoch
    does.
    """
    found = {}
    for name, run in runs.items():
        loss = run.steps["loss"].to_numpy(float)
        first = int(run.steps["epoch"].min()) * run.config.steps
        found[name] = pd.Series(loss, index=range(first, first + len(loss)))
    return pd.DataFrame(found).rename_axis("step")


def apart(table: pd.DataFrame, one: str, other: str) -> float:
    """How far two columns of `losses` lie apart at most, relative, in the steps of both."""
    return float((table[one] / table[other] - 1).abs().max())


def recorded(machine: str = "", gpus: int = 0) -> dict[str, Run]:
    """The recorded runs of this lab on several GPUs, by their label.

    Empty, with a line that says so, where there is none.

    Args:
        machine: the one that recorded them; "": any that did, the last by name.
        gpus: those on so many; 0: on the most.
    """
    known = [machine] if machine else recordings.machines()
    every = [run for name in known for run in recordings.recorded_runs(name, PURPOSE)]
    gpus = gpus or max((run.record.gpus for run in every), default=0)
    found = {run.config.rung: run for run in every if run.record.gpus == gpus}
    if gpus < 2 or not found:
        print(f"No network in shards is recorded{f' for {machine}' * bool(machine)} yet.")
    return found


def ways(runs: Mapping[str, Run], model: str = "coatnet_5_224") -> pd.DataFrame:
    """Recorded runs beside DDP's: a row a run, those without the trace of a step.

    Columns: images_per_s, of_ddp (that ÷ DDP's), peak_gib, of_peak, joules_per_image, images (a
    GPU), limit_gib (0: all there was), status, reached (80 % of DDP's rate at 75 % of its peak).
    What a run did not measure is NaN.
    """
    mine = {
        name: run
        for name, run in runs.items()
        if run.config.model == model and not run.config.profile_steps
    }
    rows = {name: _row(run) for name, run in mine.items()}
    columns = ["images_per_s", "peak_gib", "joules_per_image", "images", "limit_gib", "status"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    ddp = [name for name in mine if name.removeprefix("resnet50-") == "ddp"]
    beside = table.loc[ddp[0]] if ddp else pd.Series(np.nan, table.columns)
    table.insert(1, "of_ddp", table["images_per_s"] / beside["images_per_s"])
    table.insert(3, "of_peak", table["peak_gib"] / beside["peak_gib"])
    table["reached"] = (table["of_ddp"] >= ENOUGH) & (table["of_peak"] <= SMALLER)
    return table


def _row(run: Run) -> list:
    record, config = run.record, run.config
    is_ok = record.status == "ok"
    return [
        record.images_per_s if is_ok else np.nan,
        record.peak_gib if is_ok else np.nan,
        record.joules_per_image if is_ok else np.nan,
        config.batch_size // record.gpus,
        config.memory_gib,
        record.status,
    ]


def parts(of: Run | Trace) -> pd.Series:
    """Of a mean traced step on a GPU, in ms, what it is made of.

    step: from its first kernel to its last. computing: any kernel but NCCL's runs; in it, added up,
    copies (of parts into messages and out of them) and casts (to another format). exposed: only
    NCCL runs. idle: nothing does, so that the GPU waits for the host.

    Raises:
        ValueError: a trace without a GPU, or without a whole step.
    """
    trace = of if hasattr(of, "kernels") else tables.read_run(of)
    numbers = tables.steps(trace)["step"]
    rows = trace.kernels[trace.kernels["step"].isin(numbers)] if len(trace.kernels) else ()
    if len(rows) == 0:
        raise ValueError(f"{trace.source} has no kernel of a GPU in a whole step")
    begin, end = rows["start_s"].min(), (rows["start_s"] + rows["duration_s"]).max()
    is_sent = rows["kernel"].str.match(NCCL)
    busy, any_at_all = computing(trace), merge_intervals(intervals_of(rows))
    computed = overlap_s((begin, end), busy)
    running = overlap_s((begin, end), any_at_all)
    own = rows[~is_sent.astype(bool)]
    by = {
        name: own.loc[own["operator"].str.contains(pattern), "duration_s"].sum()
        for name, pattern in (("copies", COPIES), ("casts", CASTS))
    }
    found = {
        "step": end - begin,
        "computing": computed,
        **by,
        "exposed": running - computed,
        "idle": end - begin - running,
    }
    return pd.Series(found) * 1e3 / len(numbers)


def compared(runs: Mapping[str, Run]) -> pd.DataFrame:
    """`parts` of several traced runs side by side, in ms: a column a run; none: empty."""
    return pd.DataFrame({name: parts(run) for name, run in runs.items()})
