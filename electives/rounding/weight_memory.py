"""Memory of autocast where weights dominate, on fake tensors."""

from __future__ import annotations

import torch
from torch import nn

from trainspeed import memory
from trainspeed.fake_gpu import fake_tensors

WIDTH, LAYERS = 8192, 4  # 268 million weights: 1 GiB in fp32


def mlp_peaks(batch: int) -> dict[str, float]:
    """Predict the peak GiB of a large multilayer perceptron, in fp32 and under bf16 autocast.

    Keys: "forward, fp32", "forward, bf16", "step, fp32" and "step, bf16". A step is forward,
    backward and an update by SGD with momentum. Nothing is computed.
    """
    return {
        f"{part}, {precision}": _peak(batch, precision == "bf16", part == "step")
        for part in ("forward", "step")
        for precision in ("fp32", "bf16")
    }


def _peak(batch: int, autocast: bool, full_step: bool) -> float:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    half = torch.bfloat16 if autocast else None
    with fake_tensors():
        step = memory.FakeStep(
            nn.Sequential(*layers),
            torch.empty(batch, WIDTH),
            optimizer="sgd",
            autocast=half,
        )
        if full_step:
            return memory.predict_step(step).peak_gib
        with memory.tracked(step) as held:
            step.forward()
    return held["Total"]
