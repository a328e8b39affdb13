"""Measure the signals that Slurm sends a job that ignores them, on the course's Slurm box.

    course slurm up && python -m research.slurm_signals [OUT.jsonl]

A job notes each SIGTERM, and the time ten times a second. It is ended by its time limit, by
scancel, and by an urgent job, with a GraceTime of 0 and of 8 seconds. Takes four minutes, and
changes the GraceTime of the box's partition `gpu` for that time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import slurm_box

JOB = """
import signal, sys, time
begin, out = time.monotonic(), open(sys.argv[1], "w", buffering=1)
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", time.monotonic() - begin, file=out))
while True:
    time.sleep(0.1)
    print("alive", time.monotonic() - begin, file=out)
"""
CASES = {
    "time limit": {"options": ["--time=1"]},
    "scancel": {"cancel": True},
    "preempted, GraceTime=0": {"urgent": True},
    "preempted, GraceTime=8": {"urgent": True, "grace_s": 8},
}
NODES = ["--nodes=2", "--exclusive"]  # so that an urgent job needs the nodes


def slurm(*words: str) -> str:
    env = os.environ | slurm_box.environment()
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def measure(name: str, folder: Path, options=(), cancel=False, urgent=False, grace_s=0) -> dict:
    """Run one job until it is killed, and return when it got what, after the first SIGTERM."""
    script, out = folder / "job.py", folder / "times.txt"
    script.write_text(JOB)
    out.unlink(missing_ok=True)
    slurm("scontrol", "update", "partitionname=gpu", f"GraceTime={grace_s}")
    wrap = f"srun --ntasks=1 --nodes=1 {sys.executable} {script} {out}"
    submit = ["sbatch", "--parsable", f"--output={folder}/log.txt"]
    job = slurm(*submit, *NODES, "--partition=gpu", "--requeue", *options, f"--wrap={wrap}")
    while not out.exists() or not out.stat().st_size:
        time.sleep(0.2)
    if cancel:
        slurm("scancel", job)
    if urgent:
        slurm(*submit, *NODES, "--partition=urgent", "--wrap=sleep 1")
    size = -1
    while "SIGTERM" not in out.read_text() or size != out.stat().st_size:
        size = out.stat().st_size
        time.sleep(2)
    state = slurm("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T")
    slurm("scancel", job)
    lines = [line.split() for line in out.read_text().splitlines()]
    terms = [float(second) for word, second in lines if word == "SIGTERM"]
    again = [second - terms[0] for second in terms if second - terms[0] > 1]
    return {
        "ended by": name,
        "second SIGTERM, s": round(again[0], 1) if again else None,
        "SIGKILL, s": round(float(lines[-1][1]) - terms[0], 1),
        "state": state,
    }


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".jsonl")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, case in CASES.items():
                row = json.dumps(measure(name, Path(folder), **case))
                print(row, flush=True)
                out.open("a").write(row + "\n")
        finally:
            slurm("scontrol", "update", "partitionname=gpu", "GraceTime=0")
