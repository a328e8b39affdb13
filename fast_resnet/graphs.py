"""A step as CUDA graphs, one for each pass of a span of segments: a launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Collection

import torch

from fast_resnet import _compat
from fast_resnet.network import Segments
from fast_resnet.structure import HEAD


class Graphs:
    """Captures both passes for images of one shape; kernels must have run on this shape before.

    They contain nothing that changes from step to step, such as the learning rate or the loss
    scale. Images, and the gradient of the logits, are copied to where the graphs read them.
    """

    def __init__(self, segments: Segments, spans: Collection[range], images: torch.Tensor) -> None:
        self.images = images  # each step copies its images here
        self._outputs: dict[int, torch.Tensor] = {}  # by the last segment of a span
        self._inputs: dict[int, torch.Tensor] = {}  # gradients of these outputs
        self._forward = {span: torch.cuda.CUDAGraph() for span in spans}
        self._backward = {span: torch.cuda.CUDAGraph() for span in spans}
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        # A dispatch mode that reads results would wait for the device, which capture forbids.
        with _compat.without_dispatch_modes():
            self._rehearse(segments, images)
            self._capture(segments, images)

    def _rehearse(self, segments: Segments, images: torch.Tensor) -> None:
        """Run both passes in this thread, because nothing can be chosen during a capture.

        cuDNN remembers its choices by thread, and backward runs in one of autograd's threads.
        """
        buffers = [*segments.model.buffers()]
        values = [buffer.clone() for buffer in buffers]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            segments.rehearse(images)
        torch.cuda.current_stream().wait_stream(self._stream)
        for buffer, value in zip(buffers, values):
            buffer.copy_(value)

    def _capture(self, segments: Segments, images: torch.Tensor) -> None:
        x, self._tape = images, None
        for span, graph in self._forward.items():
            with self._capture_into(graph):
                x, self._tape = segments.forward(span, x, self._tape)
            self._outputs[span[-1]] = x
        d = torch.zeros_like(x)
        for span, graph in reversed(self._backward.items()):
            self._inputs[span[-1]] = d
            with self._capture_into(graph):
                d = segments.backward(span, d, self._tape)

    def _capture_into(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        """Return the context that captures into `graph`."""
        # Threads of NCCL and of data loaders may keep working during the capture.
        return torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )

    def forward(self, span: range, x: torch.Tensor) -> torch.Tensor:
        """Replay `Segments.forward` on the previous span's output, or on the images."""
        place = self._outputs.get(span[0] - 1, self.images)
        if x.data_ptr() != place.data_ptr():  # hooks got a copy, and may have changed it
            place.copy_(x)
        self._forward[span].replay()
        out = self._outputs[span[-1]]
        return out.clone() if span[-1] == HEAD else out

    def backward(self, span: range, d: torch.Tensor) -> torch.Tensor | None:
        """Replay `Segments.backward`."""
        place = self._inputs[span[-1]]
        if d.data_ptr() != place.data_ptr():  # the logits' gradient, or one that a hook replaced
            place.copy_(d)
        self._backward[span].replay()
        return self._inputs.get(span[0] - 1)
