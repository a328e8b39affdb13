"""One network, made ready to answer in one way or another: types, layout, compiler, graph."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from course.training.precision import HALF
from labs.lab_inference.fold import Fold, fold, folded

Answer = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Way:
    """How a network answers; each field is off by default.

    precision: "fp32", "bf16" or "fp16": of its weights and of what flows through it.
    graph: the kernels of a call are recorded once, and sent all at once (CUDA alone).
    """

    precision: str = "fp32"
    channels_last: bool = False
    folded: bool = False
    compiled: bool = False
    graph: bool = False


LADDER = {
    "fp32": Way(),
    "+ channels_last": Way(channels_last=True),
    "+ bf16": Way("bf16", channels_last=True),
    "+ folded": Way("bf16", channels_last=True, folded=True),
    "+ compiled": Way("bf16", channels_last=True, folded=True, compiled=True),
    "+ CUDA graph": Way("bf16", channels_last=True, folded=True, compiled=True, graph=True),
}


def images_for(model: nn.Module, batch: int, px: int, seed: int = 0) -> torch.Tensor:
    """Images (batch, 3, px, px) of random numbers, where the network's weights lie."""
    draw = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    return torch.randn(batch, 3, px, px, generator=draw).to(device)


def prepared(model: nn.Module, way: Way, fold_by: Fold = fold) -> nn.Module:
    """A copy of the network as the way has it, in evaluation, not compiled.

    Raises:
        ValueError: a precision that is none of fp32, bf16, fp16.
    """
    if way.precision != "fp32" and way.precision not in HALF:
        raise ValueError(f"precision={way.precision!r}: choose fp32 or {' or '.join(HALF)}")
    made = folded(model, fold_by) if way.folded else deepcopy(model).eval()
    made = made.to(HALF.get(way.precision, torch.float32))
    return made.to(memory_format=torch.channels_last) if way.channels_last else made


def ready(model: nn.Module, images: torch.Tensor, way: Way, fold_by: Fold = fold) -> Answer:
    """A call that answers these images, in the network's way.

    They are cast and laid out beforehand, as a loader would.

    Raises:
        ValueError: a precision that there is not, or a graph without CUDA.
    """
    if way.graph and images.device.type != "cuda":
        raise ValueError(f"graph=True records kernels of CUDA, and images are on {images.device}")
    network = prepared(model, way, fold_by)
    given = images.to(HALF.get(way.precision, torch.float32))
    if way.channels_last:
        given = given.to(memory_format=torch.channels_last)
    answers = torch.compile(network, dynamic=False) if way.compiled else network

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return answers(given)

    return _captured(call) if way.graph else call


def _captured(call: Answer) -> Answer:
    """Its kernels as one CUDA graph, which reads and writes the same memory each time."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # what a first call allocates and chooses is no part of it
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return scores

    return replay
