"""Converting a network, and asking why its steps would not run as kernels."""

from __future__ import annotations

import torch
from torch import nn

from fast_resnet import structure
from fast_resnet.model import FastResNet, Kernels, latest, unavailable, wrong_dtype, wrong_weights


def convert(model: nn.Module) -> nn.Module:
    """Return the same network, with training steps that run as kernels; its weights do not change.

    Args:
        model: a bottleneck ResNet from torchvision or timm, before or after it moves to a GPU. It
            is changed in place; convolutions become channels last.

    Precision follows autocast. If the kernels cannot compute a step, the network's own code
    computes it, with one warning.

    Raises:
        ValueError: a different network; the message names the difference.
    """
    if reason := unsupported_reason(model):
        raise ValueError(f"fast_resnet: {reason}. It converts {structure.KNOWN}")
    if structure.library(model) == "timm":
        from fast_resnet.timm_resnet import FastTimmResNet as Converted
    else:
        Converted = FastResNet
    if not isinstance(model, Converted):
        model.__class__ = Converted
    reason = unavailable(model.conv1.weight.device)
    latest.update(form=model.library if reason else "kernels", why=reason)
    return model.to(memory_format=torch.channels_last)


def unsupported_reason(model: nn.Module) -> str:
    """Return what `convert` does not support in a network; "" if it can be converted."""
    return structure.difference(model)


def fallback_reason(model: nn.Module, dtype: torch.dtype) -> str:
    """Return why training steps in dtype would run the network's own code; "" if kernels run."""
    if not isinstance(model, Kernels):
        return "it is not converted"
    reason = unavailable(model.conv1.weight.device) or wrong_weights(model)
    return reason or wrong_dtype(dtype)


def last_conversion() -> dict[str, str]:
    """Return, for logs, the "form" of this process's steps (kernels, or the network's library),
    and "why"."""
    return dict(latest)
