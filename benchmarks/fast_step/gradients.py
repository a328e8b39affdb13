"""Are the algebra's gradients right? Their distance to fp32 autograd's, beside autocast's."""

import copy
import gc

import torch
import torch.nn.functional as F
from torch import nn

from course.training.precision import set_tf32
from fast_resnet import convert, plain
from fast_resnet.model import EAGER_STEPS

SCALE = 2048.0  # gradients of an untrained network overflow fp16 at the usual 65536


def gradients_of(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """fp32 gradients by name, unscaled; dtype is autocast's, None for fp32 throughout."""
    model.zero_grad()
    scale = SCALE if dtype == torch.float16 else 1.0
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        loss = F.cross_entropy(model(images), labels)
    (loss * scale).backward()
    return {name: p.grad.float() / scale for name, p in model.named_parameters()}


def distances(
    gradients: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]
) -> dict[str, float | str]:
    """|a - b| / |b| over the parameters: the median, nine tenths, the worst, and whose it is."""
    found = {n: ((gradients[n] - r).norm() / r.norm()).item() for n, r in reference.items()}
    values = torch.tensor([*found.values()])
    return {
        "median": values.quantile(0.5).item(),
        "nine_tenths": values.quantile(0.9).item(),
        "worst": values.max().item(),
        "worst_of": max(found, key=found.__getitem__),
    }


def check(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype
) -> list[dict]:
    """One record each for autocast, the plain form, kernels, and kernels in CUDA graphs.

    Large distances are rounding's, not errors'. The algebra is right where it is no farther from
    fp32 than autocast is. TF32 is off for the reference only.
    """
    torch.backends.cudnn.benchmark = False
    set_tf32(False)
    reference = gradients_of(copy.deepcopy(model), images, labels, None)
    set_tf32(True)
    by_plain = plain.convert(copy.deepcopy(model))
    by_kernels = convert(copy.deepcopy(model))
    ways = {"autocast": (model, 1), "plain": (by_plain, 1), "fast": (by_kernels, 1)}
    ways["fast in graphs"] = (by_kernels, EAGER_STEPS + 1)  # the last of which is replayed
    records = []
    for name, (network, steps) in ways.items():
        for _ in range(steps):
            gradients = gradients_of(network, images, labels, dtype)
        found = distances(gradients, reference)
        records.append({"record": "gradients", "way": name, "dtype": str(dtype), **found})
        del gradients
        gc.collect()
        torch.cuda.empty_cache()
    return records
