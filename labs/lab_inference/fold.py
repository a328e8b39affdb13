"""BatchNorm in evaluation is a factor and an offset a channel: both fit into the convolution."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import fx, nn

Fold = Callable[
    [torch.Tensor, torch.Tensor, nn.BatchNorm2d], tuple[torch.Tensor, torch.Tensor]
]  # fmt: skip


def fold(
    weight: torch.Tensor, bias: torch.Tensor, norm: nn.BatchNorm2d
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a convolution that does what this one and the BatchNorm after it do.

    Args:
        weight: (outputs, inputs, height, width). bias: (outputs,), zeros where there is none.
        norm: in evaluation, it makes of x: (x − mean) / √(variance + eps) · weight + bias.
    """
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return weight * scale[:, None, None, None], (bias - norm.running_mean) * scale + norm.bias


@torch.no_grad()
def folded(model: nn.Module, fold_by: Fold = fold) -> fx.GraphModule:
    """A copy in evaluation, without those BatchNorms that follow a convolution."""
    traced = fx.symbolic_trace(deepcopy(model).eval())
    parts = dict(traced.named_modules())
    for node in [each for each in traced.graph.nodes if each.op == "call_module"]:
        before, norm = node.args[0], parts[node.target]
        conv = parts.get(before.target) if before.op == "call_module" else None
        follows = isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d)
        if not follows or len(before.users) > 1:  # someone else needs what is not normalised
            continue
        none = torch.zeros_like(norm.running_mean)
        weight, bias = fold_by(conv.weight, none if conv.bias is None else conv.bias, norm)
        conv.weight, conv.bias = nn.Parameter(weight), nn.Parameter(bias)
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def norms(model: nn.Module) -> int:
    """How many BatchNorms a network has."""
    return sum(isinstance(part, nn.BatchNorm2d) for part in model.modules())
