"""Predict the memory of a config's training step, with trainspeed's fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from course.config import Config
from course.training import models, optimizers
from course.training.precision import HALF
from trainspeed import memory
from trainspeed.fake_gpu import fake_tensors
from trainspeed.memory import Prediction

CLASSES = 1000  # of ImageNet, and of synthetic data
_CHECKPOINTING = {
    "every": "every block recomputed",
    "second": "every second block recomputed",
    "selective": "cheap operators recomputed",
}
NO_STRATEGY = "all kept"


class FakeStep(memory.FakeStep):
    """The model, optimizer and batch of a config, as in the course's solutions."""

    def __init__(self, config: Config, model: nn.Module) -> None:
        with torch.device("meta"):
            images = torch.empty(config.batch_size, 3, config.image_px, config.image_px)
            labels = torch.zeros(config.batch_size, dtype=torch.long)
        # Muon needs numbers, which fake tensors lack. Like SGD, it keeps a momentum per matrix.
        kind = "sgd" if config.optimizer == "muon" else config.optimizer
        half = torch.bfloat16 if config.precision == "half" else HALF.get(config.precision)
        super().__init__(
            model,
            images,
            targets=labels,
            loss=nn.functional.cross_entropy,
            optimizer=partial(optimizers.create, cfg=replace(config, optimizer=kind, fused=False)),
            autocast=half,
            channels_last=config.channels_last,
            offload=config.offload,
        )
        self.micro_batch = config.micro_batch or config.batch_size
        if config.data == "synthetic" and config.channels_last:
            # A synthetic batch stays on the device, next to its channels_last copy.
            self.others = [torch.empty(images.shape)]
        if config.checkpointing:
            blocks = models.blocks(self.model)[:: 2 if config.checkpointing == "second" else 1]
            kept = models.COSTLY if config.checkpointing == "selective" else ()
            memory.checkpoint_modules(blocks, kept)


@contextmanager
def fake_step(config: Config) -> Iterator[FakeStep]:
    """Create a config's training step, to be used inside this context.

    Raises:
        ValueError: a step that PyTorch refuses, such as BatchNorm over a single value.
    """
    config.require_images("the prediction of a step")
    try:
        with torch.device("meta"):  # timm reads numbers when it creates a network
            model = models.create(config.model, CLASSES, config.image_px)
        with fake_tensors():
            yield FakeStep(config, model)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{config.model} cannot be trained on {config.setup}: {error}. Raise batch_size or "
            f"image_px"
        ) from error


def predict_memory(config: Config) -> Prediction:
    """Predict the peak GiB of a config's training on a GPU; this needs no GPU.

    The prediction does not include the workspaces of cuDNN and cuBLAS (0.1 GiB in half precision,
    0.5 in fp32, at batch 256 on an H100), the CUDA context, and memory that the allocator reserves
    without using it. docs/memory.md compares predictions with measured peaks.

    Raises:
        ValueError: a config that runs on the CPU, or a step that PyTorch refuses.
    """
    if config.device == "cpu":
        raise ValueError(
            "device='cpu': the prediction is for tensors on a GPU. On a CPU the whole process is "
            "measured, with its libraries; set device='auto'"
        )
    with fake_step(config) as step:
        return memory.predict_step(step)


def memory_strategy(config: Config) -> str:
    """Describe how a config trades time for memory; `NO_STRATEGY` if it does not."""
    words = [_CHECKPOINTING[config.checkpointing]] if config.checkpointing else []
    words += ["offloaded"] * config.offload
    if config.micro_batch and config.micro_batch < config.batch_size:
        words.append(f"{config.micro_batch} per pass")
    return ", ".join(words) or NO_STRATEGY
