"""Hand-written forward and backward passes of a bottleneck ResNet, in six segments.

The segments are the stem, four layers and the head. In the forward pass, each block keeps its
input, y and z around its 3x3 convolution (before and after BatchNorm and ReLU), and the mask of the
last ReLU, one bit per element. The outputs of conv3 and of the shortcut's convolution, which are
four times as wide, are never written. In the backward pass, blocks pass on one tensor d: the
gradient of the last ReLU's input in the block below. The "dbeta" row of that block's bn3 contains
d's column sums.

The network is split into segments so that hooks of stages get their outputs, and so that, while one
segment runs its backward pass, the gradients of the segment above it are sent to other ranks
(ddp.py). Without hooks and DDP, all segments are one span.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fast_resnet import _compat
from fast_resnet.formulas import as_images, as_rows
from fast_resnet.products import Linear, input_gradient, linear_norm, linear_norm_backward
from fast_resnet.rows import (
    add_norm_gradients,
    add_sums,
    norm_relu,
    norm_relu_backward,
    stem_backward,
    stem_pool,
    subsample,
    unpool_masked,
)
from fast_resnet.state import Norm, State
from fast_resnet.structure import HEAD, LAYERS, STEM

# The first layer's forward type, by the network's type. cuDNN has no bf16 kernel for four channels,
# and would take several times as long as in fp16. Normalised images are well within fp16's range.
# Gradients may not be, so the backward pass stays in bf16.
FIRST = {torch.bfloat16: torch.float16}


@dataclass
class BlockTape:
    """Tensors for one block's backward pass. Rows are pixels; height is the height of an image."""

    block: nn.Module
    x: torch.Tensor  # [n height², C], the input
    height: int
    y1: torch.Tensor
    z1: torch.Tensor
    y2: torch.Tensor
    height2: int  # after the 3x3 convolution, which may have stride 2
    bits: torch.Tensor  # the mask of the last ReLU, [n height2², C_out / 8]
    conv3: Linear
    shortcut: Linear | None


@dataclass
class Tape:
    """Tensors for a network's backward pass."""

    images: torch.Tensor  # [n, 4, h, w]
    stem_y: torch.Tensor  # [n stem_height², 64], in the type of `FIRST`
    stem_winner: torch.Tensor  # [n stem_height²/4, 64], uint8
    stem_height: int
    blocks: list[BlockTape]
    pooled: torch.Tensor | None = None  # [n, C]

    @property
    def height(self) -> int:
        """Height of an image after the blocks that have run so far."""
        return self.blocks[-1].height2 if self.blocks else self.stem_height // 2


class Segments:
    """The segments of a torchvision bottleneck ResNet, and their buffers.

    In the forward pass, a segment passes rows of pixels [n h w, C] to the next one. In the backward
    pass, it passes down the gradient of the input of the ReLU that computed these rows; the stem
    takes the gradient of the max pool's output.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, tapped: Collection[int] = ()) -> None:
        self.model, self.dtype = model, dtype
        self.tapped = tapped  # segments whose output hooks get, with its gradient before the ReLU
        self.layers = [getattr(model, name) for name in LAYERS]
        self._unmasked = [self.layers[number - 1][-1] for number in tapped if number != STEM]
        parts = [[model.conv1, model.bn1], *self.layers, [model.fc]]
        kinds = nn.Conv2d, nn.BatchNorm2d, nn.Linear
        self.modules = [
            [m for p in part for m in p.modules() if isinstance(m, kinds)] for part in parts
        ]
        self.state = State([m for part in self.modules for m in part], dtype)

    def modules_in(self, span: range) -> list[nn.Module]:
        """Return the convolutions, BatchNorms and last layer of a span of segments, in order."""
        return [module for number in span for module in self.modules[number]]

    def masked(self, gradient: torch.Tensor, mask: torch.Tensor, number: int) -> torch.Tensor:
        """Return a tapped output's gradient [n, C, h, w] as the segment's `backward` expects it.

        mask [n h w, C] is that of the last ReLU. Sums over unmasked gradients are replaced.
        """
        d = as_rows(gradient)
        if number == STEM:
            return d
        d = torch.where(mask, d, 0)
        last = self.layers[number - 1][-1].bn3
        self.state.norms[last].row("dbeta").copy_(d.sum(0, dtype=torch.float32))
        return d

    def _bits(self, tape: BlockTape) -> torch.Tensor:
        """Return the mask for the gradient of a block's output: ones if hooks get this output."""
        return torch.full_like(tape.bits, 255) if tape.block in self._unmasked else tape.bits

    def forward(self, span: range, x: torch.Tensor, tape: Tape | None) -> tuple[torch.Tensor, Tape]:
        """Return the output of a span of segments for x, and the tape.

        The stem takes images [n, 4, h, w] and begins a new tape.
        """
        for number in span:
            x, tape = self._forward(number, x, tape)
        return x, tape

    def backward(self, span: range, d: torch.Tensor, tape: Tape) -> torch.Tensor | None:
        """Return the gradient of a span's input, from that of its output; None for images."""
        for number in reversed(span):
            d = self._backward(number, d, tape)
        return d

    def rehearse(self, images: torch.Tensor) -> None:
        """Run both passes over images [n, 4, h, w], with 0 as the gradient of the logits."""
        scores, tape = self.forward(range(HEAD + 1), images, None)
        self.backward(range(HEAD + 1), torch.zeros_like(scores), tape)

    def _forward(self, number: int, x: torch.Tensor, tape: Tape | None) -> tuple:
        if number == STEM:
            self.state.begin()
            return self._stem_forward(x)
        if number == HEAD:
            tape.pooled = x.view(len(tape.images), tape.height**2, -1).mean(1)
            fc = self.model.fc
            return torch.addmm(fc.bias.to(x.dtype), tape.pooled, self.state.weight[fc].t()), tape
        for block in self.layers[number - 1]:
            x = self._block_forward(block, x, tape)
        return x, tape

    def _backward(self, number: int, d: torch.Tensor, tape: Tape) -> torch.Tensor | None:
        if number == STEM:
            return self._stem_backward(d, tape)
        if number == HEAD:
            return self._head_backward(d, tape)
        begin = sum(len(layer) for layer in self.layers[: number - 1])
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # (destination, source)
        for at in reversed(range(begin, begin + len(self.layers[number - 1]))):
            d = self._block_backward(tape, at, d, copies)
        _compat.copy_all(*map(list, zip(*copies)))  # one launch for all
        return d

    def _stem_forward(self, images: torch.Tensor) -> tuple[torch.Tensor, Tape]:
        dtype = FIRST.get(images.dtype, images.dtype)
        weight = self.state.weight[self.model.conv1].to(dtype)
        images_y = F.conv2d(images.to(dtype), weight, stride=2, padding=3)
        y, norm, height = as_rows(images_y), self.state.norms[self.model.bn1], images_y.shape[2]
        add_sums(y, norm)
        x, winner = stem_pool(y, norm, height, images.dtype)
        return x, Tape(images, y, winner, height, [])

    def _stem_backward(self, d: torch.Tensor, tape: Tape) -> None:
        norm, conv, height = self.state.norms[self.model.bn1], self.model.conv1, tape.stem_height
        dy = stem_backward(d, tape.stem_winner, tape.stem_y, norm, height)
        dy, weight = as_images(dy, len(tape.images), height), self.state.weight[conv]
        dw = _compat.convolution_backward(dy, tape.images, weight, (2, 2), 3, 1, False)[1]
        self.state.weight_gradient[conv].copy_(dw)

    def _head_backward(self, d: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Return the gradient of the last ReLU's input, from that of the logits [n, classes]."""
        fc, last = self.model.fc, tape.blocks[-1]
        self.state.bias_gradient.copy_(d.sum(0, dtype=torch.float32))
        torch.mm(d.t(), tape.pooled, out=self.state.weight_gradient[fc])
        return unpool_masked(d @ self.state.weight[fc], self._bits(last), self._norm3(last))

    def _norm3(self, tape: BlockTape) -> Norm:
        return self.state.norms[tape.block.bn3]

    def _block_forward(self, block: nn.Module, x: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Return a block's output for x [n height², C], and add its tensors to the tape."""
        state, n, height = self.state, len(tape.images), tape.height
        norm1, norm2, norm3 = (state.norms[m] for m in (block.bn1, block.bn2, block.bn3))
        y1 = x @ state.weight[block.conv1].flatten(1).t()
        add_sums(y1, norm1)
        z1 = norm_relu(y1, norm1, with_total=False)
        y2 = F.conv2d(
            as_images(z1, n, height),
            state.weight[block.conv2],
            stride=block.conv2.stride,
            padding=1,
            groups=block.conv2.groups,
        )
        height2, y2 = y2.shape[2], as_rows(y2)
        add_sums(y2, norm2)
        z2 = norm_relu(y2, norm2, with_total=True)
        identity, shortcut = x, None
        if block.downsample is not None:
            identity, shortcut = self._shortcut_forward(block, x, tape)
        out, bits, conv3 = linear_norm(state, z2, norm2, block.conv3, norm3, identity)
        block_tape = BlockTape(block, x, height, y1, z1, y2, height2, bits, conv3, shortcut)
        tape.blocks.append(block_tape)
        return out

    def _shortcut_forward(
        self, block: nn.Module, x: torch.Tensor, tape: Tape
    ) -> tuple[torch.Tensor, Linear]:
        """Return bn(x W') of the shortcut, with or without stride."""
        conv, norm = block.downsample[0], self.state.norms[block.downsample[1]]
        below = self._norm3(tape.blocks[-1]) if tape.blocks else self.state.norms[self.model.bn1]
        if is_strided(block):
            x = subsample(x, below, tape.height)
        elif tape.blocks:  # otherwise stem_pool has already added the sums
            below.row("total").copy_(x.sum(0, dtype=torch.float32))
        out, _, linear = linear_norm(self.state, x, below, conv, norm, None)
        return out, linear

    def _block_backward(self, tapes: Tape, at: int, d: torch.Tensor, copies: list) -> torch.Tensor:
        """Return d for this block's input, from d for its output.

        For the first block, return the gradient of the max pool's output.
        """
        tape, state, n = tapes.blocks[at], self.state, len(tapes.images)
        block, x, height = tape.block, tape.x, tape.height
        norm1, norm2, norm3 = (state.norms[m] for m in (block.bn1, block.bn2, block.bn3))
        dz2 = linear_norm_backward(state, d, norm3, tape.conv3, tape.y2)
        dy2 = as_images(norm_relu_backward(dz2, tape.y2, norm2), n, tape.height2)
        z1, conv, weight = as_images(tape.z1, n, height), block.conv2, state.weight[block.conv2]
        kind = conv.stride, 1, conv.groups, True
        dz1, dw2 = _compat.convolution_backward(dy2, z1, weight, *kind)
        copies.append((state.weight_gradient[conv], dw2))
        dz1 = as_rows(dz1)
        add_norm_gradients(dz1, tape.y1, norm1)
        dy1 = norm_relu_backward(dz1, tape.y1, norm1)
        torch.mm(dy1.t(), x, out=state.weight_gradient[block.conv1].flatten(1))
        shortcut = d  # the identity passes its gradient on unchanged
        if tape.shortcut is not None:
            shortcut = linear_norm_backward(state, d, norm3, tape.shortcut)
        w1 = state.weight[block.conv1].flatten(1)
        if not at:  # no mask here: in the stem's backward, `winner` marks where the ReLU gave 0
            return shortcut.addmm_(dy1, w1)
        below = tapes.blocks[at - 1]
        strided = is_strided(block)
        norm = self._norm3(below)
        return input_gradient(dy1, w1, shortcut, self._bits(below), norm, height, strided)


def is_strided(block: nn.Module) -> bool:
    """Return whether the block's shortcut reads only every second pixel."""
    return block.downsample is not None and block.downsample[0].stride == (2, 2)
