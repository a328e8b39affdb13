"""The backward pass, written by hand: gradients go into the state's flat buffers.

Between blocks one tensor is handed down: d, the gradient behind the ReLU's mask of the block below,
with its column sums. Its last maker, dgrad1, has both at hand.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course.training.algebra.choices import Choices
from course.training.algebra.forward import BlockTape, Tape, is_strided
from course.training.algebra.pixels import as_images, as_rows
from course.training.algebra.products import input_gradient, linear_norm_backward, weight_gradient
from course.training.algebra.rows import (
    add_norm_gradients,
    norm_relu_backward,
    stem_backward,
    unpool_masked,
)
from course.training.algebra.state import State

Copies = list[tuple[torch.Tensor, torch.Tensor]]  # (where to, what)


def backward(
    model: nn.Module,
    state: State,
    choices: Choices,
    tape: Tape,
    logits: torch.Tensor,
    labels: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """The mean cross entropy of logits [n, classes]; fills the state's gradients, times scale."""
    loss, d_pooled = head_backward(model, state, tape, logits, labels, scale)
    n, last = logits.shape[0], tape.blocks[-1]
    d_total = state.workspace.named("last", d_pooled.shape[1])
    pixels = last.height2 * last.height2
    d = unpool_masked(choices, d_pooled, last.bits, d_total, pixels)
    copies: Copies = []
    for block, below in zip(reversed(tape.blocks), [*reversed(tape.blocks[:-1]), None]):
        d, d_total = block_backward(state, choices, block, below, d, d_total, n, copies)
    dy = stem_backward(
        choices, d, tape.stem_winner, tape.stem_y, state.norms[model.bn1], tape.stem_height
    )
    dy4, w = as_images(dy, n, tape.stem_height), state.weight[model.conv1]
    _, dw = convolution_backward(dy4, tape.images, w, (2, 2), (3, 3), with_input=False)
    copies.append((state.weight_gradient[model.conv1], dw))
    torch._foreach_copy_(*map(list, zip(*copies)))  # one launch for all
    return loss


def head_backward(
    model: nn.Module,
    state: State,
    tape: Tape,
    logits: torch.Tensor,
    labels: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and the gradient of the pooled features [n, C]: softmax minus one hot, in fp32."""
    n = logits.shape[0]
    log_probabilities = F.log_softmax(logits.float(), 1)
    loss = F.nll_loss(log_probabilities, labels)
    dl = log_probabilities.exp()
    dl.scatter_add_(1, labels[:, None], torch.full((n, 1), -1.0, device=dl.device))
    dl = dl * (scale / n)
    state.bias_gradient.copy_(dl.sum(0))
    dl = dl.to(tape.pooled.dtype)
    torch.mm(dl.t(), tape.pooled, out=state.weight_gradient[model.fc])
    return loss, dl @ state.weight[model.fc]


def block_backward(
    state: State,
    choices: Choices,
    tape: BlockTape,
    below: BlockTape | None,
    d: torch.Tensor,
    d_total: torch.Tensor,
    n: int,
    copies: Copies,
) -> tuple[torch.Tensor, torch.Tensor]:
    """From d of this block's output to d of the block below; under the first: of the max pool."""
    block, x = tape.block, tape.x
    norm1, norm2 = state.norms[block.bn1], state.norms[block.bn2]
    dz2 = linear_norm_backward(state, choices, d, d_total, tape.conv3, (tape.y2, norm2))
    dy2 = norm_relu_backward(choices, dz2, tape.y2, norm2)
    dz1, dw2 = convolution_backward(
        as_images(dy2, n, tape.height2),
        as_images(tape.z1, n, tape.height),
        state.weight[block.conv2],
        block.conv2.stride,
        (1, 1),
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
        return shortcut.addmm_(dy1, w1), d_total
    total = state.workspace.named((below.block, "gradient"), x.shape[1])
    strided = is_strided(block)
    d = input_gradient(choices, dy1, w1, shortcut, below.bits, total, tape.height, strided)
    return d, total


def convolution_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    stride: tuple,
    padding: tuple,
    with_input: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The gradients of x (unless not wanted) and of w, by cuDNN; no bias, dilation or groups."""
    wanted = (with_input, True, False)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, (1, 1), False, (0, 0), 1, wanted
    )
    return dx, dw
