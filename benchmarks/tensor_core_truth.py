"""Do names tell which kernels used Tensor Cores? One training step of each setting under ncu.

    python benchmarks/tensor_core_truth.py FOLDER

It needs a GPU whose counters may be read, and Nsight Compute (`ncu`). Each setting is a process
of its own, which trains as solutions/train.py does on one synthetic batch; ncu watches a single
step of it and reads, kernel by kernel, its duration and how busy the Tensor Cores' pipe was.
FOLDER gets ncu.csv, which belongs in course/recorded/MACHINE/ (read by
`course.traces.tensor_cores.truth`), and ncu_raw.tar.gz, what ncu printed. Both are written anew
after every setting, the most telling settings come first, and none is begun for which `--limit`
leaves no time.
"""

import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import date
from pathlib import Path

import pandas as pd
import torch

from course.config import Config, rung
from course.data.loader import Synthetic
from course.days.lab import BUSY
from course.labs import exercises
from course.runs.recordings import trace_name
from course.runs.run import PROJECT
from course.traces.tables import read_ncu
from course.traces.tensor_cores.rules import classify
from course.traces.tensor_cores.truth import COLUMNS, FILE
from course.training.recorder import Recorder

METRICS = {
    "duration_s": "gpu__time_duration.sum",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
# Both take one pass. The pipe also takes HFMA2.MMA, which is no product; to count it apart takes
# three, between which memory is saved and put back: 0.2 s a kernel on an H100, minutes a step.
# benchmarks/tensor_core_sass.py reads the machine code instead.
WATCHED = 5  # the step that ncu sees, counted from 0: libraries have chosen their kernels by then
LEAST_S, MOST_S, COMPILE_S = 30, 120, 240  # no setting is begun with less, none gets more
LONGEST = 1024
NOTES = """\
What ncu counted in one training step of ResNet-50, by kernel and setting (batch 256, 224 px).
kernel         as PyTorch's profiler names it; empty: that of the line above
count, seconds launches, and their time under ncu, one after another; share: of its setting's step
tensor_active  share of cycles in which the Tensor Cores' pipe was busy, in the busiest launch"""


def settings(**changes) -> dict[str, Config]:
    """The configs by the name of their recorded trace, what matters most first."""
    few = BUSY | {"steps": WATCHED + 2, "warmup_steps": WATCHED} | changes
    half = few | {"precision": "fp16"}
    configs = [
        rung("channels_last", **few),
        rung("amp", **few),
        rung("device", **few),
        rung("device", **few | {"precision": "tf32"}),
        rung("channels_last", **half),
        rung("amp", **half),
        rung("compile", **few),
        rung("fused", **few),
    ]
    return {trace_name(config): config for config in configs}


class Watched:
    """Batches during one step of which the profiler is on: from its batch to the next one's."""

    def __init__(self, batches: Synthetic, device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == WATCHED:
                self.switch(on=True)
            yield batch
            if number == WATCHED:
                self.switch(on=False)

    def switch(self, *, on: bool) -> None:
        """Turn ncu's watching on or off, with nothing left in the device's queue."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()


def train(cfg: Config, kind: type[Watched] = Watched) -> Watched:
    """Train with the course's script, with its batches watched.

    TODO 5, which starts PyTorch's own profiler, stays open: a process has one profiler.
    """
    text = (PROJECT / "solutions" / "train.py").read_text()
    script = {"__name__": "train"}
    exec(compile(exercises.render(text, 4), "train.py", "exec"), script)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if accelerator and cfg.device == "auto" else torch.device("cpu")
    batches = kind(Synthetic(cfg, device), device)
    script["loaders"] = lambda *_, **__: (batches, batches)
    run = Recorder(None)
    run.config = cfg
    script["main"](run)
    return batches


def known_metrics(ncu: str, wanted: dict[str, str]) -> dict[str, str]:
    """Those metrics that this GPU has, by ncu's own list; all of them where it gives none."""
    ask = [ncu, "--query-metrics"]
    try:
        listed = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return wanted
    names = {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
    found = {key: name for key, name in wanted.items() if name.partition(".")[0] in names}
    return found if "duration_s" in found else wanted


def profile(ncu: str, name: str, report: Path, metrics: dict[str, str], limit_s: float) -> str:
    """One setting under ncu, its results in `report`; returns what was printed meanwhile.

    Raises:
        RuntimeError: it failed, or was not done within `limit_s` seconds.
    """
    command = [
        ncu,
        "--force-overwrite",
        "--export",
        report,
        "--metrics",
        ",".join(metrics.values()),
        "--profile-from-start",
        "off",
        "--replay-mode",
        "kernel",
        "--cache-control",
        "none",
        "--clock-control",
        "none",
        "--target-processes",
        "application-only",
        sys.executable,
        __file__,
        "--step",
        name,
    ]
    with report.with_suffix(".log").open("w+") as log:
        # In a session of its own, so that what it started ends with it where it is late.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            ending = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ending = f"nothing within {limit_s:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        text = log.read()
    if ending or not report.exists():
        raise RuntimeError(f"ncu ended with {ending}: {text[-1500:]}")
    return text


def printed(ncu: str, report: Path, names: str) -> str:
    """A report as CSV, a line for each kernel and metric; names "mangled" or "demangled"."""
    command = [
        ncu,
        "--import",
        report,
        "--csv",
        "--page",
        "details",
        "--print-units",
        "base",
        "--print-kernel-base",
        names,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"LC_ALL": "C"}
    )
    if done.returncode:
        raise RuntimeError(f"ncu --import: {done.stdout[-500:]} {done.stderr[-500:]}")
    if "Kernel Name" not in done.stdout:
        raise RuntimeError(f"ncu printed no kernel, but: {done.stdout[-500:]}")
    return done.stdout


def collect(
    ncu: str, name: str, folder: Path, metrics: dict[str, str], limit_s: float
) -> pd.DataFrame:
    """One setting: its kernels, as in ncu.csv. What ncu printed stays in `folder`."""
    begin, report = time.monotonic(), folder / f"{name}.ncu-rep"
    said = profile(ncu, name, report, metrics, limit_s)
    rows = {}
    for names in ("mangled", "demangled"):
        path = folder / f"{name}.{names}.csv"
        path.write_text(printed(ncu, report, names))
        rows[names] = read_ncu(path).kernels
    table = by_kernel(name, rows["mangled"])
    passes = " or ".join(sorted(set(re.findall(r"(\d+) pass", said))))
    print(
        f"{name}: {table['count'].sum()} launches of {len(table)} kernels, "
        f"{table['seconds'].sum() * 1e3:.1f} ms, busiest {table['tensor_active'].max():.1%}; "
        f"{passes or 'unknown'} passes; took {time.monotonic() - begin:.0f} s"
    )
    pairs = zip(rows["mangled"]["kernel"].map(demangled), rows["demangled"]["kernel"])
    for one, other in sorted(set(pairs)):
        if classify(one).verdict != classify(other).verdict:
            print(f"  judged differently by ncu's name for it: {one!r}, {other!r}")
    sys.stdout.flush()
    return table


def demangled(name: str) -> str:
    """A kernel's name as PyTorch's profiler writes it on Linux: as the C++ library spells it.

    The profiler leaves names of more than `LONGEST` characters as they are.
    """
    if len(name) > LONGEST:
        return name
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:  # it was no mangled name
        return name
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


def by_kernel(setting: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Launches of one setting (of `read_ncu`, names mangled) summed up by kernel: COLUMNS."""
    groups = rows.assign(kernel=rows["kernel"].map(demangled)).groupby("kernel", sort=False)
    table = groups.agg(
        count=("duration_s", "size"),
        seconds=("duration_s", "sum"),
        tensor_active=("tensor_active", "max"),
    ).reset_index()
    table["share"] = table["seconds"] / table["seconds"].sum()
    return table.assign(setting=setting)[COLUMNS]


def write_counters(path: Path, table: pd.DataFrame, origin: list[str]) -> None:
    """Write a machine's ncu.csv.

    Args:
        table: COLUMNS, one row a kernel and setting.
        origin: lines about machine, versions, date and command, put at the top.
    """
    table = table.astype({"count": "Int64"})
    table = table.sort_values(["kernel", "setting"], kind="stable")[COLUMNS]
    # Names are most of the bytes, and settings share many of them.
    table["kernel"] = table["kernel"].mask(table["kernel"].eq(table["kernel"].shift()), "")
    write(path, table, [*NOTES.splitlines(), *origin])


def write(path: Path, table: pd.DataFrame, head: list[str]) -> None:
    """Write a table below lines that tell what it is and where it is from."""
    lines = "".join(f"# {line}\n" for line in head)
    path.write_text(lines + table.to_csv(index=False, float_format="%.4g"))


def origin(ncu: str, metrics: dict[str, str]) -> list[str]:
    """What ncu.csv says at its top: machine, versions, date, command, counters."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, version = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (query, [ncu, "--version"])
    )
    name, driver = gpu.splitlines()[0].split(", ")
    version = re.search(r"Version (\S+)", version)
    return [
        f"{name}, driver {driver}, PyTorch {torch.__version__}, "
        f"Nsight Compute {version[1] if version else 'unknown'}, {date.today().isoformat()}",
        "python benchmarks/tensor_core_truth.py FOLDER",
        *(f"{key}: {metric}" for key, metric in metrics.items()),
    ]


def pack(folder: Path, tables: list[pd.DataFrame], raw: Path, head: list[str]) -> None:
    """Write what there is so far."""
    folder.mkdir(parents=True, exist_ok=True)
    write_counters(folder / FILE, pd.concat(tables), head)
    with tarfile.open(folder / "ncu_raw.tar.gz", "w:gz") as archive:
        for path in sorted([*raw.glob("*.csv"), *raw.glob("*.log")]):
            archive.add(path, path.name)


def main() -> None:
    known = settings()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."))
    parser.add_argument("--limit", type=float, default=540, help="seconds for all of it")
    parser.add_argument("--settings", nargs="+", choices=known, default=list(known))
    parser.add_argument("--step", choices=known, help=argparse.SUPPRESS)  # for ncu
    asked = parser.parse_args()
    if asked.step:
        train(known[asked.step])
        return
    end, ncu = time.monotonic() + asked.limit, shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    metrics = known_metrics(ncu, METRICS)
    head, tables = origin(ncu, metrics), []
    print(*head, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as raw:
        for name in asked.settings:
            left, most = end - time.monotonic(), COMPILE_S if name == "compile" else MOST_S
            if left < LEAST_S:
                print(f"{name}: no time left", flush=True)
                continue
            try:
                tables.append(collect(ncu, name, Path(raw), metrics, min(left, most)))
            except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
            else:
                pack(asked.folder, tables, Path(raw), head)
    if not tables:
        raise SystemExit("nothing was measured")


if __name__ == "__main__":
    main()
