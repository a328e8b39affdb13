"""All that is to be known of the algebra's kernels on a GPU, in parts that fit into minutes.

    python benchmarks/fast_step/on_gpu.py OUT                   # one GPU
    python benchmarks/fast_step/on_gpu.py OUT --parts ranks scaling    # two or more

Each part is a process of its own, whose output goes to OUT/PART.log; what matters most comes first,
and no part begins that would end after --seconds. Parts: gradients (and speed) in fp16, the same in
bf16, records (the course's own script, packed as `course record` does), parity, fed (from files),
tiles (all of them timed, for a GPU of which none are known); ranks and scaling.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURE, PARITY = str(HERE / "measure.py"), str(HERE.parent / "parity.py")
ITSELF, RANKS = str(HERE / "on_gpu.py"), str(HERE / "ranks.py")
# Part: its command after python, and seconds that it may take.
PARTS: dict[str, tuple[list[str], int]] = {
    "fp16": ([MEASURE, "--ways", "eager", "fast", "compile", "fast", "eager"], 210),
    "bf16": ([MEASURE, "--dtype", "bf16", "--ways", "eager", "fast", "eager", "fast"], 110),
    "records": ([ITSELF, "OUT", "--part", "records"], 180),
    "parity": ([ITSELF, "OUT", "--part", "parity"], 200),
    "fed": ([ITSELF, "OUT", "--part", "fed"], 240),
    "tiles": (
        [MEASURE, "--tune", "--ways", "fast", "--no-gradients", "--choices", "OUT/choices.json"],
        400,
    ),
    "ranks": (["-m", "torch.distributed.run", "--nproc-per-node=gpu", RANKS], 90),
    "scaling": ([ITSELF, "OUT", "--part", "scaling"], 200),
}
INSIDE = tuple(name for name, (words, _) in PARTS.items() if "--part" in words)  # in this file
ONE_GPU = ("fp16", "bf16", "records", "parity", "fed")


def planned(what: str) -> list:
    """Runs of the course's script to record."""
    import torch

    from course.config import rung
    from course.days.day3 import FED, STORED
    from course.days.lab import BUSY, Planned

    if what == "records":
        configs = [rung("algebra", **BUSY), rung("algebra", **BUSY, precision="fp16")]
        configs += [rung("channels_last", **BUSY, precision="fp16"), rung("compile", **BUSY)]
        return [Planned(config, 1, "throughput") for config in configs]
    if what == "fed":
        steps = {"steps": 320, "warmup_steps": 96, "workers": 15}
        busy = BUSY | {"steps": 160, "warmup_steps": 40}
        configs = [rung("algebra", **busy, rung="algebra-synthetic")]
        for name in ("raw", "gpu_decode"):
            own = {"format": name, "rung": f"algebra-{name}"}
            configs.append(rung("algebra", **STORED | FED | steps | own))
        return [Planned(config, 1, "formats") for config in configs]
    gpus = torch.cuda.device_count()
    fp16 = BUSY | {"precision": "fp16"}  # `course record` has bf16
    return [
        Planned(rung("algebra", **fp16 | {"batch_size": 256 * count}), count, "scaling")
        for count in (1, gpus)
    ]


def record(what: str, out: Path) -> None:
    """Run and pack what is planned."""
    import torch

    from course.workshop import record

    name = torch.cuda.get_device_name()
    if what == "fed":
        subprocess.run([sys.executable, "-m", "course", "data", "--as", "raw"], check=True)
    machine = "nvidia-" + next((each for each in ("h100", "h200") if each in name.lower()), "gpu")
    if what == "scaling":
        machine += f"-x{torch.cuda.device_count()}"
    print(record.record(machine, planned(what), out / "recorded"))


def parity(out: Path) -> None:
    """Each way in a process of its own, since the host holds all of them; then the verdict."""
    ways = ("autocast", "algebra", "again", "broken")
    command = [sys.executable, PARITY, "--out", str(out / "parity.jsonl"), "--ways"]
    for each in [subprocess.Popen([*command, way]) for way in ways]:
        each.wait()
    subprocess.run([*command, *ways], check=True)


def run_parts(out: Path, parts: list[str], seconds: float) -> None:
    """One after another, as far as the time goes."""
    begun = time.monotonic()
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"COURSE_RUNS": str(out / "runs"), "PYTHONPATH": paths}
    for part in parts:
        words, needed = PARTS[part]
        left = seconds - (time.monotonic() - begun)
        if left < needed / 2:
            print(f"{part}: not begun, {left:.0f} s are left", flush=True)
            continue
        command = [sys.executable, *(word.replace("OUT", str(out), 1) for word in words)]
        began = time.monotonic()
        with (out / f"{part}.log").open("w") as log:
            try:
                code = subprocess.run(
                    command, env=environment, stdout=log, stderr=log, timeout=min(needed, left)
                ).returncode
            except subprocess.TimeoutExpired:
                code = "out of time"
        told = (out / f"{part}.log").read_text().splitlines()
        print(
            f"{part}: {code}, {time.monotonic() - began:.0f} s", *told[-12:], sep="\n", flush=True
        )


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("out", type=Path)
    asked.add_argument("--parts", nargs="+", choices=PARTS, default=ONE_GPU)
    asked.add_argument("--seconds", type=float, default=530)
    asked.add_argument("--part", choices=INSIDE, help="one that is in here, itself")
    given = asked.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.part == "parity":
        parity(out)
    elif given.part:
        record(given.part, out)
    else:
        run_parts(out, given.parts, given.seconds)


if __name__ == "__main__":
    main()
