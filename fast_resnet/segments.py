"""A network in six segments, stem, four layers and head: each can go forward, and back again.

Segments, not the whole at once: while one goes back, the gradients of the one above it are already
sent to other ranks (ranks.py).
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fast_resnet import backward, forward
from fast_resnet.forward import Tape
from fast_resnet.kernels.compiling import Launch
from fast_resnet.model import HEAD, STEM
from fast_resnet.state import State
from fast_resnet.tuning import Choices


class Segments:
    """The segments of a torchvision bottleneck ResNet, and all that they need.

    What goes from one to the next are rows of pixels [n h w, C]; what comes back is their gradient
    behind the ReLU that made them.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, chosen: dict[str, str]) -> None:
        self.state = State(model, dtype)
        self.choices = Choices(self.state.device, chosen)
        self.model, self.dtype = model, dtype
        self.layers = [model.layer1, model.layer2, model.layer3, model.layer4]
        parts = [[model.conv1, model.bn1], *self.layers, [model.fc]]
        inner = [[m for each in part for m in each.modules()] for part in parts]
        self.modules = [[m for m in part if m in self.state.known] for part in inner]

    def parameters(self, number: int) -> list[nn.Parameter]:
        """Those of a segment, in the order of `gradients`."""
        return [p for module in self.modules[number] for p in module.parameters(recurse=False)]

    def gradients(self, number: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """What `backward` has made for its parameters: a flat piece of memory, and views of it."""
        return self.state.gradients(self.modules[number])

    def forward(self, number: int, x: torch.Tensor, tape: Tape | None) -> tuple[torch.Tensor, Tape]:
        """What a segment makes of x; of the stem, images [n, 4, h, w], which begin a new tape."""
        if number == STEM:
            self.choices.batch = len(x)
            self.state.begin()
            return forward.stem_forward(self.model, self.state, self.choices, x)
        if number == HEAD:
            return forward.head_forward(self.model, self.state, tape, x), tape
        blocks = self.layers[number - 1]
        return forward.layer_forward(blocks, self.state, self.choices, tape, x), tape

    def backward(self, number: int, d: torch.Tensor, tape: Tape) -> torch.Tensor | None:
        """From the gradient of what a segment made to that of what it was given; none of images."""
        if number == STEM:
            return backward.stem_backward(self.model, self.state, self.choices, tape, d)
        if number == HEAD:
            return backward.head_backward(self.model, self.state, self.choices, tape, d)
        begin = sum(len(layer) for layer in self.layers[: number - 1])
        blocks = slice(begin, begin + len(self.layers[number - 1]))
        return backward.layer_backward(self.state, self.choices, tape, blocks, d)

    def rehearse(self, images: torch.Tensor) -> None:
        """Both passes over images [n, 4, h, w]; the gradient of the logits is 0."""
        x, tape = images, None
        for number in range(HEAD + 1):
            x, tape = self.forward(number, x, tape)
        d = torch.zeros_like(x)
        for number in reversed(range(HEAD + 1)):
            d = self.backward(number, d, tape)


def launches(segments: Segments, shape: torch.Size) -> list[Launch]:
    """Those of a step on images [n, 3, h, w]; of tiles that are to be timed, all. None is made.

    They are found by a step of a twin on the meta device, whose tensors have types, shapes and
    strides but no memory: nothing of the network is changed, and no GPU has to compute.
    """
    dtype, chosen = segments.dtype, segments.choices.chosen
    twin = Segments(copy.deepcopy(segments.model).to("meta"), dtype, chosen)
    twin.choices.interpreted = segments.choices.interpreted  # whose tiles are others
    images = torch.empty(shape[0], 4, *shape[2:], dtype=dtype, device="meta")
    twin.rehearse(images.to(memory_format=torch.channels_last))
    return twin.choices.noted
