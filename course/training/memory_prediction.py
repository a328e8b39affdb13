"""Predict a training step's memory on fake tensors: shapes, types and layouts without content.

PyTorch's FakeTensorMode runs every operator on tensors that have no content, so a step at batch
1024 takes a second on a laptop, and no memory. It shows everything that does not depend on the
numbers: the bytes that are kept, the bytes that are moved, and the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from course._compat import FakeTensorMode, efficient_attention, memory_tracker
from course.config import GIB, Config
from course.training import models, optimizers
from course.training.precision import HALF

ALIGNED = 16  # numbers: rows of an attention bias begin at multiples of it
CLASSES = 1000  # of ImageNet, and of synthetic data
_CHECKPOINTING = {
    "every": "every block recomputed",
    "second": "every second block recomputed",
    "selective": "cheap operators recomputed",
}
NO_STRATEGY = "all kept"


@dataclass(frozen=True)
class Prediction:
    """The peak memory of a training run on a GPU, and its parts at that moment, in GiB.

    The peak is at the beginning of backward: all activations exist, and only the gradients of the
    last layer. Then gradients grow, and activations are freed.
    """

    peak_gib: float
    weights_gib: float  # in fp32, with BatchNorm's running statistics
    gradients_gib: float
    optimizer_gib: float  # SGD has one momentum per weight, Adam two
    activations_gib: float  # with autocast's half-precision copies of the weights
    other_gib: float  # the batch, and the workspace of backward for one layer


class FakeStep:
    """The model, optimizer and batch of a config, as in the course's solutions.

    The fake tensors are on the CPU, because autograd asks a real driver about tensors on a GPU.
    Sizes and types are the same: on both, autocast computes convolutions and the last layer in half
    precision. Only the loss differs, by a few numbers per image.
    """

    def __init__(self, config: Config, model: nn.Module) -> None:
        self.config, self.model = config, model
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(torch.empty(weight.shape)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
        for parameter in model.parameters():
            if parameter.dim() == 4:  # Module.to refuses parameters that are fake
                parameter.data = parameter.data.to(memory_format=layout)
        # Muon needs numbers, which fake tensors lack. Like SGD, it keeps a momentum per matrix.
        kind = "sgd" if config.optimizer == "muon" else config.optimizer
        plain = replace(config, optimizer=kind, fused=False)
        self.optimizer = optimizers.create(self.model.parameters(), plain)
        shape = (config.batch_size, 3, config.image_px, config.image_px)
        loaded = torch.empty(shape)
        self.images = loaded.to(memory_format=layout)
        # A synthetic batch stays on the device, next to its channels_last copy.
        self.loaded = loaded if config.data == "synthetic" else self.images
        self.labels = torch.zeros(config.batch_size, dtype=torch.long)

        checkpointed(self.model, config.checkpointing)

        self.between_passes: Callable[[], None] = lambda: None

    def forward(self, images: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss of the batch, or of other images, with autocast as in the config."""
        images = self.images if images is None else images
        precision = self.config.precision
        half = torch.bfloat16 if precision == "half" else HALF.get(precision)
        # The host is the device "meta", which the tracker does not count.
        hooks = saved_tensors_hooks(lambda x: x.to("meta"), partial(torch.empty_like, device="cpu"))
        away = hooks if self.config.offload else nullcontext()
        with away, torch.autocast("cpu", half, enabled=half is not None):
            scores = self.model(images)
            return nn.functional.cross_entropy(scores, self.labels[: len(images)])

    def run(self, most: int | None = None) -> None:
        """Compute all micro-batches, or the first `most` of them, and update the weights."""
        micro_batches = self.images.split(self.config.micro_batch or len(self.images))
        for images in micro_batches[:most]:
            self.between_passes()
            loss = self.forward(images) * len(images) / len(self.images)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def update_once(optimizer: torch.optim.Optimizer) -> None:
    """Update with zero gradients, so that the optimizer has its state."""
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()


def _attention_on_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    """Compute attention by the GPU's fused kernel, which stores no (N, heads, L, L) matrix.

    The kernel needs a bias, such as relative positions, that is padded to rows of 16.
    """
    if attn_mask is not None:
        wide = attn_mask.shape[-1]
        attn_mask = nn.functional.pad(attn_mask.to(query.dtype), (0, -wide % ALIGNED))[..., :wide]
        attn_mask = attn_mask.expand(*query.shape[:2], -1, -1)
    for_backward = torch.is_grad_enabled()
    inputs = query, key, value, attn_mask
    return efficient_attention(*inputs, for_backward, dropout_p, is_causal)[0]


def checkpointed(model: nn.Module, which: str) -> None:
    """Let the blocks that `which` names recompute their activations in backward."""
    if not which:
        return
    selective = partial(create_selective_checkpoint_contexts, models.COSTLY)
    how = {"context_fn": selective} if which == "selective" else {}
    for block in models.blocks(model)[:: 2 if which == "second" else 1]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **how)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Create tensors with a size, a type and a device in this context, but without numbers."""
    with torch.random.fork_rng(devices=[]), FakeTensorMode():
        yield


@contextmanager
def fake_step(config: Config) -> Iterator[FakeStep]:
    """Create a config's training step, to be used inside this context.

    Raises:
        ValueError: a step that PyTorch refuses, such as BatchNorm over a single value.
    """
    attention = patch.object(nn.functional, "scaled_dot_product_attention", _attention_on_gpu)
    try:
        with torch.device("meta"):  # timm reads numbers when it creates a network
            model = models.create(config.model, CLASSES, config.image_px)
        with fake_tensors(), attention:
            yield FakeStep(config, model)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{config.model} cannot be trained on {config.setup}: {error}. Raise batch_size or "
            f"image_px"
        ) from error


def saved_tensors(forward: Callable[[], Any], known: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Run a forward pass; return what it saves for backward, once per storage not in `known`."""
    storages = {tensor.untyped_storage() for tensor in known}
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage()) not in storages:
            storages.add(storage)
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return saved


@contextmanager
def tracked(step: FakeStep, tracker: Any = None) -> Iterator[dict[str, float]]:
    """Measure GiB by kind at the peak of memory in this context; filled when it ends.

    The kinds are those of PyTorch's MemTracker: Parameter, Buffer, Gradient, Activation, Temp
    (made during backward), Optstate, Other; and Total. Another tracker has its own.
    """
    held: dict[str, float] = {}
    if tracker is None:
        tracker = memory_tracker()
        tracker.track_external(step.model, step.optimizer, step.images, step.loaded, step.labels)
    # Weak references are slow, and the tracker visits all modules after each operator.
    tracker.memory_tracking = {}
    step.between_passes = tracker.reset_mod_stats  # or it would refuse the second pass
    with tracker:
        yield held
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    held.update({getattr(kind, "value", kind): size / GIB for kind, size in snapshot.items()})


def predict_memory(config: Config) -> Prediction:
    """Predict the peak GiB of a config's training on a GPU; this needs no GPU.

    A step runs on fake tensors, when the optimizer has its state, and PyTorch's MemTracker adds up
    the storages that are alive after each operator. The prediction does not include the workspaces
    of cuDNN and cuBLAS (0.1 GiB in half precision, 0.5 in fp32, at batch 256 on an H100), the CUDA
    context, and memory that the allocator reserves without using it. docs/memory.md
    compares predictions with measured peaks.

    Raises:
        ValueError: a config that runs on the CPU, or a step that PyTorch refuses.
    """
    if config.device == "cpu":
        raise ValueError(
            "device='cpu': the prediction is for tensors on a GPU. On a CPU the whole process is "
            "measured, with its libraries; set device='auto'"
        )
    with fake_step(config) as step:
        update_once(step.optimizer)
        with tracked(step) as held:
            step.run(most=2)  # only the second pass finds earlier gradients, as later ones do
    parts = {
        "weights_gib": ("Parameter", "Buffer"),
        "gradients_gib": ("Gradient",),
        "optimizer_gib": ("Optstate",),
        "activations_gib": ("Activation",),
        "other_gib": ("Temp", "Other"),
    }
    split = {name: sum(held[kind] for kind in kinds) for name, kinds in parts.items()}
    return Prediction(peak_gib=held["Total"], **split)


def memory_strategy(config: Config) -> str:
    """Describe how a config trades time for memory; `NO_STRATEGY` if it does not."""
    words = [_CHECKPOINTING[config.checkpointing]] if config.checkpointing else []
    words += ["offloaded"] * config.offload
    if config.micro_batch and config.micro_batch < config.batch_size:
        words.append(f"{config.micro_batch} per pass")
    return ", ".join(words) or NO_STRATEGY
