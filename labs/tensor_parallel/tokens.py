"""Sequence parallelism: ranks split the tokens where tensor parallelism would repeat them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, parallel
from torch.distributed.tensor.debug import CommDebugMode

from course.analysis import on_ranks
from labs.tensor_parallel.tensors import RANKS, Block, relative_error

TOKENS = 64
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # × (p - 1)/p of the bytes
PLANS = {
    "tensor parallel": {
        "mlp.fc1": parallel.ColwiseParallel(),
        "mlp.fc2": parallel.RowwiseParallel(),
    },
    "and sequence parallel": {
        "norm": parallel.SequenceParallel(),
        "mlp.fc1": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "mlp.fc2": parallel.RowwiseParallel(output_layouts=Shard(1)),
    },
}


def compare_sequence_parallel() -> pd.DataFrame:
    """Split a block without attention over two ranks: its MLP, then also its tokens.

    Columns: the number of each of COLLECTIVES in forward; sent_kib, which a rank of a ring sends in
    them; saved_kib, which a rank saves for backward; error, of the result, relative.
    """
    rows, *_ = on_ranks(_split_block, RANKS)
    return pd.DataFrame.from_dict(rows, orient="index")


def _split_block(rank: int, ranks: int) -> dict[str, dict[str, float]]:
    mesh = init_device_mesh("cpu", (ranks,))
    return {title: _measure(plan, mesh) for title, plan in PLANS.items()}


def _measure(plan: dict[str, Any], mesh: DeviceMesh) -> dict[str, float]:
    """Return a row of `compare_sequence_parallel`."""
    torch.manual_seed(0)
    block, features = Block(), torch.randn(2, TOKENS, 32)
    full, message = block(features), features.nbytes * (RANKS - 1) / RANKS
    if "norm" in plan:
        rank = mesh.get_local_rank()
        features, full = (tensor.chunk(RANKS, 1)[rank] for tensor in (features, full))
    sharded = parallel.parallelize_module(block, mesh, plan)
    saved: dict[torch.UntypedStorage, torch.Tensor] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        saved[_storage(tensor)] = tensor
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor), (mode := CommDebugMode()):
        result = sharded(features.clone().requires_grad_())
    for weight in sharded.parameters():
        saved.pop(_storage(weight), None)
    found = {str(name): count for name, count in mode.get_comm_counts().items()}
    counts = {
        kind: sum(count for name, count in found.items() if kind in name) for kind in COLLECTIVES
    }
    return counts | {
        "sent_kib": message * sum(RING[kind] * count for kind, count in counts.items()) / 1024,
        "saved_kib": sum(_local(tensor).nbytes for tensor in saved.values()) / 1024,
        "error": relative_error(result, full),
    }


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return _local(tensor.detach()).untyped_storage()
