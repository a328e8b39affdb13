"""The forward pass of a bottleneck ResNet, and what it keeps for backward.

Each block keeps its input, y and z around its 3x3 convolution (before and behind BatchNorm and
ReLU), and the last ReLU's mask, one bit an element. The outputs of conv3 and of the shortcut's
convolution, four times as wide, are never written.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fast_resnet.formulas import as_images, as_rows
from fast_resnet.products import Linear, linear_norm
from fast_resnet.rows import add_sums, norm_relu, stem_pool
from fast_resnet.state import State
from fast_resnet.tuning import Choices

# The type that the first layer multiplies in, of the network's. cuDNN has no kernel in bf16 for so
# few channels: on an H100 it took 1.8 ms, and 0.4 in fp16, whose range normalised images are far
# from. Gradients may be anywhere, so backward stays in bf16.
FIRST = {torch.bfloat16: torch.float16}


@dataclass
class BlockTape:
    """What one block's backward needs. Rows are pixels; height is that of an image."""

    block: nn.Module
    x: torch.Tensor  # [n height², C], the input
    height: int
    y1: torch.Tensor
    z1: torch.Tensor
    y2: torch.Tensor
    z2: torch.Tensor
    height2: int  # behind the 3x3 convolution, which may have stride 2
    bits: torch.Tensor  # the mask of the last ReLU, [n height2², C_out / 8]
    conv3: Linear
    shortcut: Linear | None


@dataclass
class Tape:
    """What a network's backward needs."""

    images: torch.Tensor  # [n, 4, h, w]
    stem_y: torch.Tensor  # [n stem_height², 64], in the type of `FIRST`
    stem_winner: torch.Tensor  # [n stem_height²/4, 64], uint8
    stem_height: int
    blocks: list[BlockTape]
    pooled: torch.Tensor | None = None  # [n, C]

    @property
    def height(self) -> int:
        """Of an image where forward has come to."""
        return self.blocks[-1].height2 if self.blocks else self.stem_height // 2


def is_strided(block: nn.Module) -> bool:
    """Whether the block's shortcut reads every second pixel only."""
    return block.downsample is not None and block.downsample[0].stride == (2, 2)


def stem_forward(
    model: nn.Module, state: State, choices: Choices, images: torch.Tensor
) -> tuple[torch.Tensor, Tape]:
    """What the first block gets [n h w / 16, 64], and a tape that the blocks go on with.

    images [n, 4, h, w] in half precision, channels last.
    """
    n, dtype = images.shape[0], FIRST.get(images.dtype, images.dtype)
    weight = state.weight[model.conv1].to(dtype)
    y4 = F.conv2d(images.to(dtype), weight, stride=2, padding=3)
    stem_height = y4.shape[2]
    y, norm = as_rows(y4), state.norms[model.bn1]
    add_sums(choices, y, norm.sums)
    total = state.workspace.named("pool", norm.channels)
    x, winner = stem_pool(choices, y, norm, total, n, stem_height, images.dtype)
    return x, Tape(images, y, winner, stem_height, [])


def layer_forward(
    blocks: nn.Sequential, state: State, choices: Choices, tape: Tape, x: torch.Tensor
) -> torch.Tensor:
    """What comes out of some blocks, all that they keep being added to the tape."""
    total = state.workspace.named("pool", state.norms[blocks[0].bn1].channels)
    for block in blocks:
        height = tape.height
        x, kept = block_forward(block, state, choices, x, total, len(tape.images), height)
        tape.blocks.append(kept)
    return x


def head_forward(model: nn.Module, state: State, tape: Tape, x: torch.Tensor) -> torch.Tensor:
    """Logits [n, classes]."""
    tape.pooled = x.view(len(tape.images), tape.height**2, -1).mean(1)
    weight, bias = state.weight[model.fc], state.bias.to(x.dtype)
    return torch.addmm(bias, tape.pooled, weight.t())


def block_forward(
    block: nn.Module,
    state: State,
    choices: Choices,
    x: torch.Tensor,
    total: torch.Tensor,
    n: int,
    height: int,
) -> tuple[torch.Tensor, BlockTape]:
    """A bottleneck of x [n height², C]; total [C] are x's column sums, if anyone made them."""
    norm1, norm2 = state.norms[block.bn1], state.norms[block.bn2]
    y1 = x @ state.weight[block.conv1].flatten(1).t()
    add_sums(choices, y1, norm1.sums)
    z1 = norm_relu(choices, y1, norm1)
    stride = block.conv2.stride
    z1_images = as_images(z1, n, height)
    w2, groups = state.weight[block.conv2], block.conv2.groups
    y2 = F.conv2d(z1_images, w2, stride=stride, padding=1, groups=groups)
    height2 = y2.shape[2]
    y2 = as_rows(y2)
    add_sums(choices, y2, norm2.sums)
    total2 = state.workspace.named((block, "total"), norm2.channels)
    z2 = norm_relu(choices, y2, norm2, total2)
    identity, shortcut = x, None
    if block.downsample is not None:
        identity, shortcut = shortcut_forward(block, state, choices, x, total, n, height)
    norm3 = state.norms[block.bn3]
    out, bits, conv3 = linear_norm(state, choices, z2, total2, block.conv3, norm3, identity)
    return out, BlockTape(block, x, height, y1, z1, y2, z2, height2, bits, conv3, shortcut)


def shortcut_forward(
    block: nn.Module,
    state: State,
    choices: Choices,
    x: torch.Tensor,
    total: torch.Tensor,
    n: int,
    height: int,
) -> tuple[torch.Tensor, Linear]:
    """bn(x W') on the shortcut, with or without stride."""
    conv, norm = block.downsample[0], state.norms[block.downsample[1]]
    if is_strided(block):
        x = as_rows(as_images(x, n, height)[:, :, ::2, ::2]).contiguous()
        total = state.workspace.named((block, "strided"), 2 * x.shape[1])  # squares come along
        add_sums(choices, x, total)
    out, _, linear = linear_norm(state, choices, x, total, conv, norm, None)
    return out, linear
