"""A step's launches as CUDA graphs, one for each segment and direction: a launch instead of 50."""

from __future__ import annotations

import torch

from fast_resnet import _compat
from fast_resnet.model import HEAD
from fast_resnet.network import Segments


class Graphs:
    """Both passes over images of one shape, captured; the kernels must have run on it before.

    Nothing that changes from step to step is in them: the learning rate, the loss and its scale are
    the script's. Images, and the gradient of the logits, are copied to where the graphs look.
    """

    def __init__(self, segments: Segments, images: torch.Tensor) -> None:
        self.images = images  # here each step's have to lie
        self._outputs: list[torch.Tensor] = []
        self._inputs: dict[int, torch.Tensor] = {}  # gradients, of what each segment makes
        self._forward = [torch.cuda.CUDAGraph() for _ in range(HEAD + 1)]
        self._backward = [torch.cuda.CUDAGraph() for _ in range(HEAD + 1)]
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        with (
            _compat.without_dispatch_modes()
        ):  # whoever watches operators might wait for one's result
            self._rehearse(segments, images)
            self._capture(segments, images)

    def _rehearse(self, segments: Segments, images: torch.Tensor) -> None:
        """Both passes in this thread: cuDNN remembers its choices by thread, backward runs in one
        of autograd's, and while a graph is captured nothing can be chosen."""
        moved = [*segments.model.buffers()]
        before = [each.clone() for each in moved]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            segments.rehearse(images)
        torch.cuda.current_stream().wait_stream(self._stream)
        for each, value in zip(moved, before):
            each.copy_(value)

    def _capture(self, segments: Segments, images: torch.Tensor) -> None:
        x, self._tape = images, None
        for number in range(HEAD + 1):
            with self._captured(self._forward[number]):
                x, self._tape = segments.forward(number, x, self._tape)
            self._outputs.append(x)
        d = torch.zeros_like(x)
        for number in reversed(range(HEAD + 1)):
            self._inputs[number] = d
            with self._captured(self._backward[number]):
                d = segments.backward(number, d, self._tape)

    def _captured(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        # Other threads, as those of NCCL and of loaders, may go on meanwhile.
        return torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )

    def forward(self, number: int) -> torch.Tensor:
        """As `Segments.forward`, of what the segment before has made, or of the images."""
        self._forward[number].replay()
        return self._outputs[number].clone() if number == HEAD else self._outputs[number]

    def backward(self, number: int, d: torch.Tensor) -> torch.Tensor | None:
        """As `Segments.backward`."""
        place = self._inputs[number]
        if d.data_ptr() != place.data_ptr():  # of the logits; of others, if someone changed it
            place.copy_(d)
        self._backward[number].replay()
        return self._inputs.get(number - 1)
