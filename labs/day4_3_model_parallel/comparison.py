"""A layer that ranks share out, beside the whole one: its result, and all of its gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from course.jobs.plan import find_script
from course.training import models
from labs.day4_2_fsdp.processes import on_ranks

if TYPE_CHECKING:
    import pandas as pd

NETWORKS = {
    "CoAtNet, 1×1 convolutions": "coatnet_pico_rw_224",
    "ViT, Linear": "vit_tiny_patch16_224",
}
IMAGES, PX = 2, 64
# Of a weight the dimension that is cut; the others are whole on every rank.
CUT = {"fc1.weight": 0, "fc1.bias": 0, "fc2.weight": 1}


def compared(script: str | Path, ranks: int = 2) -> pd.DataFrame:
    """The script's SharedMlp on real ranks, beside the MLP that it was made of.

    A row for the result and for each gradient ("features" is that of what comes in); a column for
    each network's MLP. Values: the largest difference, relative to the largest number of the whole
    one's; NaN where shapes differ.

    Raises:
        ValueError: there is no such script.
        RuntimeError: a rank failed; the message is its own.
    """
    import pandas as pd

    found, *_ = on_ranks(_compare_all, ranks, str(find_script(script)))
    return pd.DataFrame(found)


def _compare_all(rank: int, ranks: int, script: str) -> dict[str, dict[str, float]]:
    shared = loaded(script).SharedMlp
    mates = init_device_mesh("cpu", (ranks,))
    return {
        title: _compare(*mlp_and_features(name), shared, mates) for title, name in NETWORKS.items()
    }


def loaded(script: str) -> ModuleType:
    """A training script as a module: nothing of it runs."""
    module = ModuleType("script")
    sys.modules[module.__name__] = module
    exec(compile(Path(script).read_text(), script, "exec"), module.__dict__)
    return module


def mlp_and_features(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The MLP of a network's last block, and what it might be given."""
    torch.manual_seed(0)
    block = models.blocks(models.create(name, 10, PX))[-1]
    channels = block.mlp.fc1.weight.shape[1]
    shape = (channels, 2, 2) if block.mlp.fc1.weight.ndim == 4 else (5, channels)
    return block.mlp, torch.randn(IMAGES, *shape)


def _compare(
    mlp: nn.Module, features: torch.Tensor, shared: type, mates: torch.distributed.DeviceMesh
) -> dict[str, float]:
    whole = _passed(mlp, features)
    own = _passed(shared(mlp, mates), features)
    found = {}
    for name, due in whole.items():
        part = own.get(name)
        if name in CUT and part is not None and part.shape != due.shape:
            part = _joined(part, CUT[name])
        found[name] = _apart(part, due)
    return found


def _passed(mlp: nn.Module, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """The result of a forward pass, and all gradients of a backward pass."""
    features = features.clone().requires_grad_()
    result = mlp(features)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (result * weight).sum().backward()
    grads = {name: each.grad.clone() for name, each in mlp.named_parameters()}
    mlp.zero_grad()
    return {"result": result.detach(), "features": features.grad, **grads}


def _joined(part: torch.Tensor, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(part) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts, dim)


def _apart(part: torch.Tensor | None, due: torch.Tensor) -> float:
    if part is None or part.shape != due.shape:
        return float("nan")
    return float((part - due).abs().max() / due.abs().max())
