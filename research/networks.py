"""The table of networks: SSD300, 3D U-Net and ResNet-50 on one GPU, or on one and on all.

    python -m research.networks OUT.jsonl [--limit 550]

On a machine with one GPU: 5 steps of warm-up, then 20 timed ones (the recorded rows have 8 to 60,
in the column `timed`), and one traced step of training. With several GPUs: 10 steps of warm-up, 30
timed ones and a traced one, on one GPU and on all. cuDNN chooses its kernels by trying. Nothing
else may run on that machine: eager steps of small batches wait for the host.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from course.analysis.ranks import on_ranks
from electives.networks.bench import Setting, Workload, measure_workload
from electives.networks.catalogue import NETWORKS
from electives.networks.measurements import ORDER
from research.sweep import command
from trainspeed.tensor_cores import tensor_core_report, tensor_core_summary
from trainspeed.tensor_cores.rules import classify
from trainspeed.timing import number_format
from trainspeed.traces.intervals import intervals_of, merge_intervals
from trainspeed.traces.reader import Trace, read
from trainspeed.traces.tables import by_kernel

BATCHES = [(name, NETWORKS[name].batch_size) for name in ORDER]
LARGE = ("resnet50", 256)
BEST = {"precision": "fp16", "layout": "channels_last"}
PUBLISHED = (("fp32", "contiguous"), ("tf32", "contiguous"), ("fp16", "contiguous"))
BF16 = (("bf16", "channels_last"), ("bf16", "contiguous"))
# A row's maximum time: trying kernels for each layer, compiling, and the rest.
TRIES_S, COMPILES_S, REST_S = 25.0, 60.0, 4.0
# Network, batch of each GPU, and the layout in which eager steps are faster.
SEVERAL = (
    ("resnet50", 64, "channels_last"),
    ("ssd300", 32, "channels_last"),
    ("unet3d", 2, "contiguous"),
    ("resnet50", 256, "channels_last"),
    ("ssd300", 128, "channels_last"),
)


KERNELS, NAME_LENGTH = 4, 90  # limits of a step's summary
TRACED_STEP = "measured"  # the range of the step in a trace
# What an operator does, by its name; the first that fits.
KINDS = (
    ("products", r"conv(?!ert)|Conv(?!ert)|\b(add)?mm\b|linear"),
    ("normalisation", r"norm|Norm"),
    ("copies", r"copy|contiguous|clone"),
    ("others", ""),
)


def plan(gpus: int) -> Iterator[dict[str, Any]]:
    """Yield the settings, the most important first.

    Rows that need the kernels of an earlier one follow it, in one process: cuDNN knows them then.
    """
    if gpus > 1:
        for count in (1, gpus):
            for name, batch, layout in SEVERAL:
                fields = {"warmup": 10, "iterations": 30, "precision": "fp16", "compile": False}
                yield {"network": name, "batch": batch, "layout": layout, "gpus": count} | fields
        return
    for precision, layout in (*PUBLISHED, tuple(BEST.values())):
        yield from _all_networks(precision=precision, layout=layout)
    yield _brief(*LARGE, **BEST)
    yield from _all_networks(compile=True, **BEST)
    for precision, layout in PUBLISHED[1::-1]:
        yield _brief(*LARGE, precision=precision, layout=layout)
    for precision, layout in BF16:
        yield from _all_networks(precision=precision, layout=layout)
    yield _brief(*LARGE, compile=True, **BEST)


def _all_networks(**fields: Any) -> Iterator[dict[str, Any]]:
    for name, batch in BATCHES:
        yield _brief(name, batch, **fields)


def _brief(name: str, batch: int, **fields: Any) -> dict[str, Any]:
    steps = {"compile": False, "warmup": 5, "iterations": 20, "gpus": 1}
    return {"network": name, "batch": batch} | steps | fields


def measure(gpus: int, **setting: Any) -> dict[str, Any]:
    """Measure a setting, on one GPU or on several."""
    if gpus == 1:
        return measure_rank(0, 1, Setting(**setting))
    return on_ranks(measure_rank, gpus, Setting(**setting), backend="nccl")[0]


def measure_rank(rank: int, ranks: int, setting: Setting) -> dict[str, Any]:
    """Return the row of `measure_workload`, and what `trace_step` returns.

    Of several ranks also weights_apart and first_losses: evidence that they train one network on
    different images.
    """
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    with number_format(device, setting.precision):
        workload = Workload(setting, device, seed=rank)
        if ranks > 1:
            # Gradients stay in the buckets; copying each back would be one more call.
            network = DistributedDataParallel(workload.network, gradient_as_bucket_view=True)
            workload.model = torch.compile(network) if setting.compile else network
        row = measure_workload(workload) | {"mode": "train"}
        row |= trace_step(workload.step)
    if ranks > 1:
        speeds = ("images_per_s", "images_per_s_q1", "images_per_s_q3")
        row |= {name: ranks * row[name] for name in speeds}
        weights = float(sum(w.detach().double().sum() for w in workload.network.parameters()))
        values: list[Any] = [None] * ranks
        distributed.all_gather_object(values, (weights, row["first_loss"]))
        sums, losses = zip(*values)
        row |= {"weights_apart": max(sums) - min(sums), "first_losses": losses}
    return row


def trace_step(step: Callable[[], Any]) -> dict[str, Any]:
    """Trace one step on a GPU, and summarize it as `summarize` does."""
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        if distributed.is_initialized():
            # Ranks start tracing at different times; the first would wait in its step.
            distributed.barrier()
            torch.cuda.synchronize()
        with record_function(TRACED_STEP):
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return summarize(only_step(read(path)))


def only_step(trace: Trace) -> Trace:
    """Return the trace without what the GPU did before the range TRACED_STEP."""
    begin = trace.ranges.loc[trace.ranges["name"] == TRACED_STEP, "start_s"].min()
    kernels, copies = (part[part["start_s"] >= begin] for part in (trace.kernels, trace.copies))
    return replace(trace, kernels=kernels, copies=copies)


def summarize(trace: Trace) -> dict[str, Any]:
    """Summarize a traced step.

    Keys: gpu_s, tensor_core_share, eligible_share and so on (`tensor_core_summary`); kinds (shares
    by what operators do); kernels, the longest (kernel, share, verdict about Tensor Cores); and
    those of `busy_seconds`.
    """
    report = tensor_core_report(trace)
    (summary,) = tensor_core_summary(step=report).drop(columns="name").to_dict("records")
    kernels = by_kernel(trace).head(KERNELS)[["name", "share"]].rename(columns={"name": "kernel"})
    kernels["verdict"] = [classify(name).verdict for name in kernels["kernel"]]
    kernels["kernel"] = kernels["kernel"].str[:NAME_LENGTH]
    shares = report.groupby(report["operator"].map(kind))["gpu_share"].sum()
    return summary | {
        "kinds": shares.reindex([name for name, _ in KINDS], fill_value=0.0).to_dict(),
        "kernels": kernels.to_dict("records"),
        **busy_seconds(trace),
    }


def busy_seconds(trace: Trace) -> dict[str, float]:
    """Return how long the GPU was busy.

    Keys: busy_s, with kernels and copies; communication_s, with NCCL's kernels; exposed_s, with
    nothing but communication.
    """

    def total(spans: list[tuple[float, float]]) -> float:
        return sum(end - begin for begin, end in spans)

    is_nccl = trace.kernels["kernel"].str.contains("nccl")
    work = [*intervals_of(trace.kernels[~is_nccl]), *intervals_of(trace.copies)]
    communication = intervals_of(trace.kernels[is_nccl])
    busy_s = total(merge_intervals([*work, *communication]))
    return {
        "busy_s": busy_s,
        "communication_s": total(communication),
        "exposed_s": busy_s - total(merge_intervals(work)),
    }


def kind(operator: str) -> str:
    """Return what an operator does, one of KINDS, by its name."""
    return next(name for name, pattern in KINDS if re.search(pattern, operator))


def longest_s(**setting: Any) -> float:
    """Return the longest time of a row."""
    return COMPILES_S if setting["compile"] else REST_S + TRIES_S


if __name__ == "__main__":
    if torch.cuda.is_available():
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()  # the compiler's processes import PyTorch during the first rows
    rows = plan(torch.cuda.device_count())
    command(__doc__, rows, measure, longest_s=longest_s)
