"""What FSDP2 refuses, tried: layouts of weights, and BatchNorm under a policy of formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from labs.day4_2_fsdp.prediction import pretended

if TYPE_CHECKING:
    import pandas as pd

HALF = torch.bfloat16
LETTERS = 90  # of what PyTorch says


def refused() -> pd.DataFrame:
    """Four ways to share a small convolution network out, and what PyTorch says: columns said.

    One pretended rank tries them, in this process; "" where it has nothing against it.
    """
    import pandas as pd

    ways: dict[str, Callable[[DeviceMesh], None]] = {
        "weights channels last": lambda mesh: _pass(mesh, weights=torch.channels_last),
        "weights contiguous, images channels last": lambda mesh: _pass(mesh),
        "BatchNorm, bf16 by a policy": lambda mesh: _pass(mesh, policy=MixedPrecisionPolicy(HALF)),
        "BatchNorm, bf16 by autocast": lambda mesh: _pass(mesh, autocast=True),
    }
    with pretended(1) as mesh:
        said = {name: _said(way, mesh) for name, way in ways.items()}
    return pd.DataFrame.from_dict(said, orient="index", columns=["said"])


def _said(way: Callable[[DeviceMesh], None], mesh: DeviceMesh) -> str:
    try:
        way(mesh)
    except (RuntimeError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        return f"{type(error).__name__}: {first[:LETTERS]}"
    return ""


def _pass(
    mesh: DeviceMesh,
    weights: torch.memory_format = torch.contiguous_format,
    policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    autocast: bool = False,
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(memory_format=weights)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", HALF, enabled=autocast):
        model(images).float().mean().backward()
