"""The memory that one layer of attention needs to train, by context: predicted, and measured.

`python -m electives.attention.memory METHOD TOKENS` prints the GiB that a step takes in a new
process on the CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from electives.attention.gpu_timing import HEADS, WIDTH, written_out
from electives.attention.tiles import online_softmax_attention
from trainspeed import Prediction, measured_memory, predict_memory

BLOCK = 1024  # keys of a tile
METHODS: dict[str, Callable[..., torch.Tensor]] = {
    "written out": written_out,
    "in tiles": partial(online_softmax_attention, block=BLOCK),
    "SDPA": partial(scaled_dot_product_attention, is_causal=True),
}


class Attention(nn.Module):
    """One layer of attention, with the projections of GPT-2's smallest model."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.output = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer for x of shape (batch, tokens, HEADS · WIDTH)."""
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, WIDTH)).transpose(1, 3).unbind(2)
        return self.output(self.attend(q, k, v).transpose(1, 2).flatten(2))


def predict_by_context(
    contexts: Iterable[int], methods: dict[str, Callable[..., torch.Tensor]] = METHODS
) -> pd.DataFrame:
    """Predict the peak GiB of a training step in bf16 with one sequence on a GPU, by context.

    Index: tokens. A column for each method.
    """

    half = torch.bfloat16
    rows = {
        tokens: {name: _predict(attend, tokens, half).peak_gib for name, attend in methods.items()}
        for tokens in contexts
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tokens")


def _predict(
    attend: Callable[..., torch.Tensor], tokens: int, autocast: torch.dtype | None
) -> Prediction:
    x = torch.empty(1, tokens, HEADS * WIDTH, device="meta")
    return predict_memory(lambda: Attention(attend), x, autocast=autocast)


def compare_with_process(methods: Iterable[str], tokens: int) -> pd.DataFrame:
    """Compare predictions in fp32 with what a training step adds to a process on this CPU.

    Both are without the weights and the optimizer's state, which exist before the step. Index:
    method. Columns: predicted_gib, measured_gib.

    Raises:
        ValueError: no such method.
        RuntimeError: the process failed; the message is the end of its log.
    """
    rows = {}
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"method={method!r}: choose {', '.join(METHODS)}")
        parts = _predict(METHODS[method], tokens, None)
        lasting = parts.weights_gib + parts.optimizer_gib
        predicted = parts.peak_gib - lasting
        rows[method] = {"predicted_gib": predicted, "measured_gib": _measure(method, tokens)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _measure(method: str, tokens: int) -> float:
    command = [sys.executable, "-P", "-m", __spec__.name, method, str(tokens)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError("\n".join(process.stderr.splitlines()[-8:]))
    return float(process.stdout.splitlines()[-1])


def _resident_gib(line: str) -> float:
    """Return this process's resident size: now (VmRSS) or the largest so far (VmHWM).

    On Linux, getrusage includes the size of the process that started this one, and /proc does not.
    Elsewhere, both are the largest so far.
    """
    status = Path("/proc/self/status")
    match = re.search(rf"{line}:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if match:
        return int(match[1]) / 2**20
    return measured_memory.peak(torch.device("cpu"))["peak_gib"]


def _train(method: str, tokens: int) -> float:
    model = Attention(METHODS[method])
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> None:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(torch.randn(1, 16, HEADS * WIDTH))  # libraries, and the optimizer's state
    before = _resident_gib("VmRSS")
    step(torch.randn(1, tokens, HEADS * WIDTH))
    return _resident_gib("VmHWM") - before


if __name__ == "__main__":
    print(_train(sys.argv[1], int(sys.argv[2])))
