"""Memory of autocast where weights dominate, on fake tensors."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from course.training import memory_prediction

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
    with memory_prediction.fake_tensors():
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model, inputs = nn.Sequential(*layers), torch.empty(batch, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if full_step:  # creates the momentum
            memory_prediction.update_once(optimizer)
        step = SimpleNamespace(
            model=model, optimizer=optimizer, images=inputs, loaded=inputs, labels=inputs
        )
        with memory_prediction.tracked(step) as held:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(inputs).square().mean()
            if full_step:
                loss.backward()
                optimizer.step()
    return held["Total"]
