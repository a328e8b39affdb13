"""Are the step's gradients right? Their distance to fp32 autograd's, beside that of autocast's."""

import copy
import gc

import torch
import torch.nn.functional as F
from step import FastResNet
from torch import nn

from course.training.algebra.pixels import pad_channels
from course.training.precision import set_tf32

SCALE = 2048.0  # gradients of an untrained network overflow fp16 at the usual 65536


def autograd_gradients(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """fp32 gradients by name, unscaled; dtype is autocast's, None for fp32 throughout."""
    model = copy.deepcopy(model)
    scale = SCALE if dtype == torch.float16 else 1.0
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        loss = F.cross_entropy(model(images), labels)
    (loss * scale).backward()
    return {name: p.grad.float() / scale for name, p in model.named_parameters()}


def fast_gradients(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
    chosen: dict[str, str],
) -> dict[str, torch.Tensor]:
    """The same by the fast step."""
    scale = SCALE if dtype == torch.float16 else None
    fast = FastResNet(copy.deepcopy(model), dtype, len(images), loss_scale=scale, chosen=chosen)
    fast.step(pad_channels(images.to(dtype)), labels, update=False)
    return fast.gradients()


def distances(
    gradients: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]
) -> dict[str, float]:
    """|a - b| / |b| over the parameters: the median, nine tenths, and the worst."""
    found = [((gradients[n] - r).norm() / r.norm()).item() for n, r in reference.items()]
    values = torch.tensor(found)
    return {
        "median": values.quantile(0.5).item(),
        "nine_tenths": values.quantile(0.9).item(),
        "worst": values.max().item(),
    }


def check(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    dtype: torch.dtype,
    chosen: dict[str, str],
) -> list[dict]:
    """One record each for autocast and the fast step. Large distances are rounding's, not errors'.

    The fast step is right where it is no farther from fp32 than autocast is. TF32 is off for the
    reference only.
    """
    torch.backends.cudnn.benchmark = False
    set_tf32(False)
    reference = autograd_gradients(model, images, labels, None)
    set_tf32(True)
    ways = {
        "autocast": lambda: autograd_gradients(model, images, labels, dtype),
        "fast": lambda: fast_gradients(model, images, labels, dtype, chosen),
    }
    records = []
    for name, gradients in ways.items():
        found = distances(gradients(), reference)
        records.append({"record": "gradients", "way": name, "dtype": str(dtype), **found})
        gc.collect()
        torch.cuda.empty_cache()
    return records
