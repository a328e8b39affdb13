"""Times on a GPU: the recorded ones, and those of a learner's step on this machine's GPU."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from course.runs import recorded_table
from electives.attention import gpu_timing

PARTS = ("limits", "time", "mask", "backend")
TIMED = '"(Triton|SDPA, FlashAttention)".*"forward"'  # rows of gpu_timing's plan


def load_measurements(machine: str) -> dict[str, pd.DataFrame]:
    """Load what gpu_timing.py measured on a machine: a table for each part.

    limits: one row, with what a copy (tb_per_s) and a product in bf16 (tflop_per_s) reach.
    time: a row per method, tokens, step ("forward" or "training") and, for Triton, tile.
    mask: a row per method and mask, of a training step. backend: a row per inputs and backend,
    with `runs`, and the longest kernel or the reason. Each table has a column `machine`.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "attention")
    return {part: table[table["part"] == part].dropna(axis="columns", how="all") for part in PARTS}


def fastest(times: pd.DataFrame) -> pd.DataFrame:
    """Return one row per step, method and tokens: for Triton, that of its fastest tile."""
    return times.sort_values("seconds").drop_duplicates(["step", "method", "tokens"])


def time_on_gpu(step: Any) -> pd.DataFrame | None:
    """Time the lab's kernel with this step next to FlashAttention on this GPU; None without one.

    One row per context, with the ms of each method, the kernel's with its fastest tile.

    Raises:
        RuntimeError: the step could not be compiled, or failed; the message is the end of the log.
    """
    if not torch.cuda.is_available():
        return None
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "kernels.py"), Path(folder, "out.jsonl")
        file.write_text(kernels_with(step))
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        command = [sys.executable, gpu_timing.__file__, str(out), "--kernels", str(file)]
        command += ["--only", TIMED]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError("\n".join(process.stderr.splitlines()[-8:]))
        rows = pd.DataFrame(map(json.loads, out.read_text().splitlines()))
    if "failed" in rows and (failed := rows.query("method == 'Triton'")["failed"].dropna()).any():
        raise RuntimeError(failed.iloc[0])
    times = fastest(rows).assign(ms=1e3 * rows["seconds"])
    return times.pivot(index="tokens", columns="method", values="ms").add_suffix(", ms")


def kernels_with(step: Any) -> str:
    """Return the text of solutions.py with a learner's step: the last function of a name counts."""
    return f"{gpu_timing.SOLUTIONS.read_text()}\n\n{inspect.getsource(step.fn)}"
