"""Variants of a network for inference: format, layout, folded BatchNorm, compiler, CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.fx.experimental.optimization import fuse

from course.training import HALF

Call = Callable[[], torch.Tensor]


def fold_batchnorms(model: nn.Module) -> fx.GraphModule:
    """Copy a network for evaluation, with each BatchNorm after a convolution folded into it."""
    return fuse(deepcopy(model).eval())


@dataclass(frozen=True)
class Variant:
    """The changes to a network for inference.

    precision: "fp32", "bf16" or "fp16", of weights and activations.
    graph: a CUDA graph launches all kernels of a call at once.
    """

    precision: str = "fp32"
    channels_last: bool = False
    folded: bool = False
    compiled: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", *HALF):
            raise ValueError(f"precision={self.precision!r}: choose fp32, {' or '.join(HALF)}")


LADDER = {
    "fp32": Variant(),
    "+ channels_last": Variant(channels_last=True),
    "+ bf16": Variant("bf16", channels_last=True),
    "+ folded": Variant("bf16", channels_last=True, folded=True),
    "+ compiled": Variant("bf16", channels_last=True, folded=True, compiled=True),
    "+ CUDA graph": Variant("bf16", channels_last=True, folded=True, compiled=True, graph=True),
}


def random_images(model: nn.Module, batch: int, px: int, seed: int = 0) -> torch.Tensor:
    """Create random images (batch, 3, px, px) on the device of the network."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    return torch.randn(batch, 3, px, px, generator=generator).to(device)


def prepare(model: nn.Module, variant: Variant) -> nn.Module:
    """Copy a network for evaluation in a variant's format and layout, not compiled."""
    network = fold_batchnorms(model) if variant.folded else deepcopy(model).eval()
    network = network.to(HALF.get(variant.precision, torch.float32))
    return network.to(memory_format=torch.channels_last) if variant.channels_last else network


def create_call(model: nn.Module, images: torch.Tensor, variant: Variant) -> Call:
    """Create a call that computes the scores of these images.

    The images are cast and laid out beforehand, as by a loader. A graph needs CUDA.
    """
    network = prepare(model, variant)
    images = images.to(HALF.get(variant.precision, torch.float32))
    if variant.channels_last:
        images = images.to(memory_format=torch.channels_last)
    if variant.compiled:
        network = torch.compile(network, dynamic=False)

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return network(images)

    return _capture(call) if variant.graph else call


def _capture(call: Call) -> Call:
    """Capture a call as a CUDA graph, which uses the same memory each time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # before capture, first calls allocate and choose kernels
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return scores

    return replay
