"""The backward pass, written by hand: gradients go into the state's flat buffers.

Between blocks one tensor is handed down: d, the gradient behind the ReLU's mask of the block below,
with its column sums. Its last maker, dgrad1, has both at hand.
"""

import torch
from torch import nn

from fast_resnet.formulas import as_images, as_rows
from fast_resnet.forward import BlockTape, Tape, is_strided
from fast_resnet.products import input_gradient, linear_norm_backward, weight_gradient
from fast_resnet.rows import (
    add_norm_gradients,
    norm_relu_backward,
    stem_rows_backward,
    unpool_masked,
)
from fast_resnet.state import State
from fast_resnet.tuning import Choices

Copies = list[tuple[torch.Tensor, torch.Tensor]]  # (where to, what)


def head_backward(
    model: nn.Module, state: State, choices: Choices, tape: Tape, d_logits: torch.Tensor
) -> torch.Tensor:
    """From the gradient of the logits [n, classes] to that behind the last block's mask."""
    state.bias_gradient.copy_(d_logits.sum(0, dtype=torch.float32))
    torch.mm(d_logits.t(), tape.pooled, out=state.weight_gradient[model.fc])
    d_pooled = d_logits @ state.weight[model.fc]
    last = tape.blocks[-1]
    total = total_of(state, last)
    return unpool_masked(choices, d_pooled, last.bits, total, last.height2 * last.height2)


def layer_backward(
    state: State, choices: Choices, tape: Tape, blocks: slice, d: torch.Tensor
) -> torch.Tensor:
    """From d of the last of some blocks to d of the block below the first of them."""
    copies: Copies = []
    for at in reversed(range(blocks.start, blocks.stop)):
        below = tape.blocks[at - 1] if at else None
        d = block_backward(state, choices, tape.blocks[at], below, d, len(tape.images), copies)
    torch._foreach_copy_(*map(list, zip(*copies)))  # one launch for all
    return d


def stem_backward(
    model: nn.Module, state: State, choices: Choices, tape: Tape, d: torch.Tensor
) -> None:
    """From the gradient of what the first block got to the gradients of the first layer."""
    norm, n = state.norms[model.bn1], len(tape.images)
    dy = stem_rows_backward(choices, d, tape.stem_winner, tape.stem_y, norm, tape.stem_height)
    dy4, w = as_images(dy, n, tape.stem_height), state.weight[model.conv1]
    _, dw = convolution_backward(dy4, tape.images, w, (2, 2), (3, 3), 1, with_input=False)
    state.weight_gradient[model.conv1].copy_(dw)


def total_of(state: State, tape: BlockTape) -> torch.Tensor:
    """Where the column sums of d behind a block's mask are added up."""
    channels = tape.block.conv3.out_channels
    return state.workspace.named((tape.block, "gradient"), channels)


def block_backward(
    state: State,
    choices: Choices,
    tape: BlockTape,
    below: BlockTape | None,
    d: torch.Tensor,
    n: int,
    copies: Copies,
) -> torch.Tensor:
    """From d of this block's output to d of the block below; under the first: of the max pool."""
    block, x, d_total = tape.block, tape.x, total_of(state, tape)
    norm1, norm2 = state.norms[block.bn1], state.norms[block.bn2]
    dz2 = linear_norm_backward(state, choices, d, d_total, tape.conv3, (tape.y2, norm2))
    dy2 = norm_relu_backward(choices, dz2, tape.y2, norm2)
    dz1, dw2 = convolution_backward(
        as_images(dy2, n, tape.height2),
        as_images(tape.z1, n, tape.height),
        state.weight[block.conv2],
        block.conv2.stride,
        (1, 1),
        block.conv2.groups,
        with_input=True,
    )
    copies.append((state.weight_gradient[block.conv2], dw2))
    dz1 = as_rows(dz1)
    add_norm_gradients(choices, dz1, tape.y1, norm1)
    dy1 = norm_relu_backward(choices, dz1, tape.y1, norm1)
    weight_gradient(choices, dy1, x, state.weight_gradient[block.conv1].flatten(1))
    shortcut = d  # the identity hands its gradient on as it is
    if tape.shortcut is not None:
        shortcut = linear_norm_backward(state, choices, d, d_total, tape.shortcut)
    w1 = state.weight[block.conv1].flatten(1)
    if below is None:  # the max pool has no mask: the stem's backward knows what was 0
        return shortcut.addmm_(dy1, w1)
    total, strided = total_of(state, below), is_strided(block)
    return input_gradient(choices, dy1, w1, shortcut, below.bits, total, tape.height, strided)


def convolution_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    stride: tuple,
    padding: tuple,
    groups: int,
    with_input: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The gradients of x (unless not wanted) and of w, by cuDNN; no bias or dilation."""
    wanted = (with_input, True, False)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, (1, 1), False, (0, 0), groups, wanted
    )
    return dx, dw
