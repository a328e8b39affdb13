"""What PyTorch's DTensor makes of a layer whose tensors are cut: right, refused, or wrong."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from labs.day4_2_fsdp.processes import on_ranks
from labs.day4_3_model_parallel.comparison import mlp_and_features

if TYPE_CHECKING:
    import pandas as pd

IMAGES, CHANNELS, PX = 4, 8, 6
LETTERS = 60  # of what PyTorch says
ROUNDING = 1e-5  # of the largest number: a result that is further off is another one


def parallelized(ranks: int = 2) -> pd.DataFrame:
    """PyTorch's own tensor parallelism, on the MLP of a transformer's block: a row for each kind.

    Linear layers are ViT's, convolutions of one pixel CoAtNet's. Columns: said (by PyTorch, "" if
    it has nothing against it), error (of the result, relative), all_reduces (in forward).
    """
    import pandas as pd

    found, *_ = on_ranks(_parallelize, ranks)
    return pd.DataFrame.from_dict(found, orient="index")


def _parallelize(rank: int, ranks: int) -> dict[str, dict[str, Any]]:
    mesh = init_device_mesh("cpu", (ranks,))
    return {
        title: _parallelized(*mlp_and_features(name), mesh)
        for title, name in (("Linear", "vit_tiny_patch16_224"), ("Conv2d", "coatnet_pico_rw_224"))
    }


def _parallelized(mlp: nn.Module, features: torch.Tensor, mesh: DeviceMesh) -> dict[str, Any]:
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    whole = mlp(features)
    try:
        own = parallelize_module(
            deepcopy(mlp), mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
        )
    except NotImplementedError as error:
        return {"said": f"{type(error).__name__}: {str(error)[:LETTERS]}"}
    with (mode := CommDebugMode()):
        result = own(features)
    error = float((result - whole).abs().max() / whole.abs().max())
    sent = sum(count for name, count in mode.get_comm_counts().items() if "all_reduce" in str(name))
    return {"said": "", "error": error, "all_reduces": sent}


def convolved(ranks: int = 2) -> pd.DataFrame:
    """A convolution of 3 × 3 whose tensors are DTensors, cut in several ways: a row each.

    Columns: said (by PyTorch), shape (of the result, put together), due (the shape of the whole
    one's), is_right.
    """
    import pandas as pd

    found, *_ = on_ranks(_convolve_all, ranks)
    return pd.DataFrame.from_dict(found, orient="index")


def _convolve_all(rank: int, ranks: int) -> dict[str, dict[str, Any]]:
    from torch.distributed.tensor import Replicate, Shard

    mesh, whole = init_device_mesh("cpu", (ranks,)), Replicate()
    ways = {  # how images lie, and how the weight does
        "images": (Shard(0), whole),
        "output channels": (whole, Shard(0)),
        "input channels": (Shard(1), Shard(1)),
        "height of the images": (Shard(2), whole),
    }
    return {name: _convolved(mesh, *placements) for name, placements in ways.items()}


def _convolved(mesh: DeviceMesh, of_images: Any, of_weight: Any) -> dict[str, Any]:
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(0)
    images, weight = torch.randn(IMAGES, CHANNELS, PX, PX), torch.randn(CHANNELS, CHANNELS, 3, 3)
    due = nn.functional.conv2d(images, weight, padding=1)
    cut = [
        distribute_tensor(each, mesh, [how])
        for each, how in ((images, of_images), (weight, of_weight))
    ]
    try:
        result = nn.functional.conv2d(*cut, padding=1).full_tensor()
    except (RuntimeError, NotImplementedError) as error:
        said = f"{type(error).__name__}: {str(error)[:LETTERS]}"
        return {"said": said, "shape": "", "due": _shape(due), "is_right": False}
    same = result.shape == due.shape
    is_right = same and bool((result - due).abs().max() < ROUNDING * due.abs().max())
    return {"said": "", "shape": _shape(result), "due": _shape(due), "is_right": is_right}


def _shape(tensor: torch.Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
