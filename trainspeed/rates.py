"""Rates of this machine's products: from a GPU's data sheet, or measured on a CPU."""

from __future__ import annotations

import re
import subprocess
import sys

SIDE = 768  # of the matrices that are multiplied on a CPU
BUDGET_S = 0.3  # for each format: without instructions for bf16, one product may take longer
CODE = f"""
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
def rate(dtype):
    a, b = (torch.randn({SIDE}, {SIDE}).to(dtype) for _ in range(2))
    best, until = 1e9, time.perf_counter() + {BUDGET_S}
    while True:
        begin = time.perf_counter(); a @ b; now = time.perf_counter()
        best = min(best, now - begin)
        if now > until: break
    return 2 * {SIDE} ** 3 / best
print(rate(torch.float32), rate(torch.bfloat16))
"""


def rates_of(machine: dict) -> dict[str, float]:
    """Return the FLOP/s of products by format, as far as known.

    A GPU's are from its data sheet, without sparsity; a CPU's are measured, which takes seconds.
    """
    if machine["device"] == "cpu":
        return cpu_rates(machine["threads"])
    return gpu_rates(machine["device_name"])


def gpu_rates(name: str) -> dict[str, float]:
    """Return the rates of a GPU by its name; empty if it is not in the tables."""
    import pandas as pd

    from trainspeed import gpus

    table = pd.concat([gpus.summary(), gpus.cards()])
    words = re.split(r"[\s-]+", name.upper())
    matches = [gpu for gpu in table.index if set(gpu.upper().split()) <= set(words)]
    if not matches or table.loc[max(matches, key=len)].ndim > 1:
        return {}
    row = table.loc[max(matches, key=len)]
    columns = {"fp32": "fp32", "tf32": "tf32", "bf16": "fp16"}
    if row["architecture"] in ("Volta", "Turing"):  # no bf16
        columns.pop("bf16")
    return {kind: 1e12 * row[name] for kind, name in columns.items() if row[name] > 0}


def cpu_rates(threads: int) -> dict[str, float]:
    """Measure products in fp32 and bf16 in a process of its own; empty if that fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(threads)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        fp32, bf16 = map(float, done.stdout.split())
    except (subprocess.TimeoutExpired, ValueError):
        return {}
    return {"fp32": fp32, "bf16": bf16}
