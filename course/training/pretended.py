"""A rehearsal: a training script's first step on a pretended accelerator.

A machine without an accelerator cannot tell whether a script would move its tensors to one:
`.to(device)` does nothing there. PyTorch's fake tensors can. They compute nothing, but each has
a device, and an operator that is given tensors of two devices refuses, as on a real GPU.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course.config import Config
from course.data.loader import ImageSets

PRETENDED = torch.device("cuda")


class _Meter:
    """In the place of `course.training.meter.Meter`: one step, not timed."""

    def __init__(self, *_: Any) -> None:
        """Nothing is recorded."""

    def steps(self, batches: Any, _epoch: int) -> Iterator[Any]:
        yield next(iter(batches))

    def lap(self, _phase: str, loss: torch.Tensor | None = None) -> None:
        """Nothing is timed."""


class _Run:
    rank, local_rank, world_size = 0, 0, 1

    def __init__(self, config: Config) -> None:
        self.config = config

    def save_trace(self, _: Any) -> None:
        """Nothing is recorded."""

    def save_weights(self, _: Any) -> None:
        """Nothing is recorded."""

    def epoch(self, **_: float) -> None:
        """Nothing is validated."""


def device_of_first_step(text: str, cfg: Config) -> tuple[str, str]:
    """Where the script's first step computes, were there an accelerator: (device type, error).

    Args:
        text: a training script, shaped as solutions/train.py.
        cfg: its config; a small one serves, since only devices are looked at.
    """
    script, devices = ModuleType("rehearsed"), []
    try:
        exec(compile(text, "train.py", "exec"), vars(script))
        with _pretended(script, devices), redirect_stdout(None):
            script.main(_Run(cfg))
    except Exception as error:
        places = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == "train.py"
        ]
        where = f" (train.py, line {places[-1].lineno})" if places else ""
        return "", f"{type(error).__name__}: {str(error).splitlines()[0]}{where}"
    return (devices[0].type, "") if devices else ("", "no step called backward()")


def _apply(self: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
    """`Module._apply` for fake tensors, whose storage PyTorch's own would try to swap."""
    for module in self.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(change(parameter))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


@contextmanager
def _pretended(script: ModuleType, devices: list[torch.device]) -> Iterator[None]:
    def image_sets(cfg: Config) -> ImageSets:
        return ImageSets(range(cfg.batch_size), range(cfg.batch_size), 10)

    def loaders(_sets: ImageSets, cfg: Config, *_: Any, **__: Any) -> tuple[list, list]:
        images = torch.zeros(cfg.batch_size, 3, cfg.image_px, cfg.image_px)
        labels = torch.zeros(cfg.batch_size, dtype=torch.long)
        return [(images, labels)], []

    def backward(loss: torch.Tensor, **_: Any) -> None:
        devices.append(loss.device)  # autograd itself would ask for a real device

    def accelerator(*_: Any, **__: Any) -> torch.device:
        return PRETENDED

    answers = {"is_available": _yes, "is_bf16_supported": _yes, "device_count": lambda: 1}
    with (
        torch.random.fork_rng(devices=[]),
        FakeTensorMode(allow_non_fake_inputs=True),
        patch.object(FakeTensorMode, "avoid_device_init", True),  # or CUDA is asked for a driver
        patch.object(torch.accelerator, "current_accelerator", accelerator),
        patch.object(torch.accelerator, "is_available", _yes),
        patch.multiple(torch.cuda, **answers),  # for scripts that ask CUDA itself
        patch.multiple(torch.Tensor, backward=backward, item=_zero, __float__=_zero),
        patch.object(torch.nn.Module, "_apply", _apply),
        patch.multiple(script, image_sets=image_sets, loaders=loaders, Meter=_Meter),
    ):
        yield


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _zero(_: torch.Tensor) -> float:
    """A number where a script prints one: a fake tensor has none to read."""
    return 0.0
