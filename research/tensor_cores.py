"""Measure how busy Tensor Cores are in each kernel of a training step, with Nsight Compute.

    python -m research.tensor_cores OUT.jsonl --limit 540
    python -m research.tensor_cores OUT.jsonl --csv ncu.csv     # as the recorded machine has it

It needs a GPU whose counters may be read, and Nsight Compute (`ncu`). Each setting is a separate
process, which trains as solutions/train.py does on one synthetic batch; ncu watches a single step.
`trainspeed.tensor_cores.counters` compares the result with verdicts by kernels' names.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from course.checks import exercises
from course.config import FULL_SIZE, Config, rung
from course.data.loader import Synthetic
from course.runs.recordings import trace_name
from course.runs.run import PROJECT
from course.training.recorder import Recorder
from labs.profiler.nsight import read_ncu
from research.sweep import as_part, command, device, lines

COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active"]
METRICS = {
    "duration_s": "gpu__time_duration.sum",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
# Both take one pass. The pipe also takes HFMA2.MMA, which is no product; to count it separately
# takes three, between which memory is saved and restored: minutes per step on an H100.
# research/machine_code.py reads the machine code instead.
WATCHED = (
    5  # the step that ncu watches, counted from 0: libraries have chosen their kernels by then
)
MAX_NAME = 1024
NOTES = """\
What ncu counted in one training step of ResNet-50, by kernel and setting (batch 256, 224 px).
kernel         as PyTorch's profiler names it; empty: same as in the line above
count, seconds launches, and their time under ncu, one after another; share: of its setting's step
tensor_active  share of cycles in which the Tensor Cores' pipe was busy, in the busiest launch"""


def settings(**changes: Any) -> dict[str, Config]:
    """Return the configs by the name of their recorded trace, the most important first."""
    two_steps = FULL_SIZE | {"steps": WATCHED + 2, "warmup_steps": WATCHED} | changes
    half = two_steps | {"precision": "fp16"}
    configs = [
        rung("channels_last", **two_steps),
        rung("amp", **two_steps),
        rung("device", **two_steps),
        rung("device", **two_steps | {"precision": "tf32"}),
        rung("channels_last", **half),
        rung("amp", **half),
        rung("compile", **two_steps),
        rung("fused", **two_steps),
    ]
    return {trace_name(config): config for config in configs}


def longest_s(setting: str) -> float:
    """Return the time limit of a setting."""
    return 240.0 if setting == "compile" else 120.0


class Batches:
    """Synthetic batches; ncu watches from one batch to the next."""

    def __init__(self, cfg: Config) -> None:
        self.batches = Synthetic(cfg, device())

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == WATCHED:
                self.watch(on=True)
            yield batch
            if number == WATCHED:
                self.watch(on=False)

    def watch(self, *, on: bool) -> None:
        """Turn ncu's watching on or off, when the device's queue is empty."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()


def train(cfg: Config) -> None:
    """Train with the course's script; its batches turn ncu on and off.

    TODO profiler, which starts PyTorch's own profiler, stays open: a process has one profiler.
    """
    text = (PROJECT / "solutions" / "train.py").read_text()
    script = {"__name__": "train"}
    exec(
        compile(exercises.render(text, exercises.upto("channels_last")), "train.py", "exec"), script
    )
    batches = Batches(cfg)
    script["loaders"] = lambda *_, **__: (batches, batches)
    run = Recorder(None)
    run.config = cfg
    script["main"](run)


def measure(setting: str) -> list[dict[str, Any]]:
    """Measure the kernels of a setting's step, with the launches of one kernel summed up.

    Raises:
        RuntimeError: ncu is missing, or read nothing in time; the message has its last lines.
    """
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise RuntimeError("ncu is missing: install NVIDIA's Nsight Compute")
    arguments = [ncu, "--csv", "--print-units", "base"]
    arguments += ["--print-kernel-base", "mangled", "--metrics", ",".join(METRICS.values())]
    arguments += ["--profile-from-start", "off", "--replay-mode", "kernel"]
    arguments += ["--cache-control", "none", "--clock-control", "none"]
    arguments += ["--target-processes", "application-only"]
    arguments += [sys.executable, "-m", "research.tensor_cores", "--step", setting]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ncu.csv"
        with path.open("w") as file:
            # In a separate session, so that all its processes can be ended.
            process = subprocess.Popen(
                arguments, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(longest_s(setting))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        try:
            rows = read_ncu(path).kernels
        except ValueError as error:
            raise RuntimeError(f"{error}: {path.read_text()[-400:]}") from None
    return by_kernel(rows).to_dict("records")


def by_kernel(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum up launches (of `read_ncu`, names mangled) by kernel: COLUMNS without the setting."""
    groups = rows.assign(kernel=rows["kernel"].map(demangled)).groupby("kernel", sort=False)
    table = groups.agg(
        count=("duration_s", "size"),
        seconds=("duration_s", "sum"),
        tensor_active=("tensor_active", "max"),
    ).reset_index()
    return table.assign(share=table["seconds"] / table["seconds"].sum())


def demangled(name: str) -> str:
    """Return a kernel's name as PyTorch's profiler writes it on Linux: demangled by libstdc++.

    The profiler leaves names of more than `LONGEST` characters as they are.
    """
    if len(name) > MAX_NAME:
        return name
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    pointer = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not pointer:  # not a mangled name
        return name
    text = ctypes.string_at(pointer).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
    return text


def write_counters(path: Path, known: list[dict[str, Any]]) -> None:
    """Write a sweep's lines as a machine's ncu.csv."""
    part = as_part(known)
    table = pd.DataFrame(part["rows"]).sort_values(["kernel", "setting"], kind="stable")[COLUMNS]
    # Names are most of the bytes, and settings share many of them.
    table["kernel"] = table["kernel"].mask(table["kernel"].eq(table["kernel"].shift()), "")
    metrics = [f"{key}: {metric}" for key, metric in METRICS.items()]
    write(path, table, [*NOTES.splitlines(), *origin(part), *metrics])


def origin(part: dict[str, Any]) -> list[str]:
    """Describe where a sweep's lines come from."""
    return [f"{part['machine']}, PyTorch {part['torch']}, {part['date']}", part["command"]]


def write(path: Path, table: pd.DataFrame, head: list[str]) -> None:
    """Write a table below lines about its contents and origin."""
    comments = "".join(f"# {line}\n" for line in head)
    path.write_text(comments + table.to_csv(index=False, float_format="%.4g"))


if __name__ == "__main__":
    if "--step" in sys.argv:
        train(settings()[sys.argv[-1]])
    elif "--csv" in sys.argv:
        write_counters(Path(sys.argv[-1]), lines(Path(sys.argv[1])))
    else:
        plan = [{"setting": name} for name in settings()]
        command(__doc__, plan, measure, longest_s=longest_s)
