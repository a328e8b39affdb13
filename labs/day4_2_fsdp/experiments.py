"""Sharding by formula, by hand, and with FSDP2: memory, messages, and unsupported cases."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pandas as pd
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course.analysis.ranks import on_ranks
from course.config import GIB
from labs.day4_2_fsdp.prediction import fake_mesh

# Bytes per weight in fp32: the weight, its gradient, and AdamW's two means.
BYTES = {"weights": 4, "gradients": 4, "optimizer": 8}
SHARDED = ((), ("optimizer",), ("optimizer", "gradients"), tuple(BYTES))  # by ZeRO stage
SIZE, IMAGES, STEPS = 64, 8, 5  # of the handmade layer
MICRO_BATCHES = 4


def zero_memory(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GiB that each rank keeps between steps, without activations.

    Columns: stage (0 is DDP), kind, gib. From Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054,
    section 5), for weights in fp32 and AdamW.
    """
    rows = [
        (stage, kind, size * parameters / (ranks if kind in sharded else 1) / GIB)
        for stage, sharded in enumerate(SHARDED)
        for kind, size in BYTES.items()
    ]
    return pd.DataFrame(rows, columns=["stage", "kind", "gib"])


def communication_volume(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GB that each rank sends per step in fp32, under ddp, zero2 and zero3.

    An all-gather or a reduce-scatter of n bytes sends n (p − 1)/p from each of p ranks; an
    all-reduce is one of each.
    """
    counts = {"ddp": (0, 0, 2), "zero2": (1, 1, 0), "zero3": (2, 1, 0)}
    names = ["all-gather", "reduce-scatter", "all-reduce"]
    table = pd.DataFrame(counts, index=names).T * (4 * parameters * (ranks - 1) / ranks / 1e9)
    return table.assign(total=table.sum(axis=1))


class Gather(torch.autograd.Function):
    """Gather the ranks' shards in forward, and scatter the sum of their gradients in backward."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor) -> torch.Tensor:
        full = shard.new_empty(len(shard) * distributed.get_world_size(), *shard.shape[1:])
        distributed.all_gather_into_tensor(full, shard)
        return full

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        ranks = distributed.get_world_size()
        shard = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
        distributed.reduce_scatter_tensor(shard, gradient.contiguous())  # the sum over the ranks
        return shard / ranks


class ShardedLinear(nn.Module):
    """A linear layer; each rank keeps some rows of its weight."""

    def __init__(self, full: nn.Linear, rank: int, ranks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(full.weight.detach().chunk(ranks)[rank].clone())
        self.bias = nn.Parameter(full.bias.detach().chunk(ranks)[rank].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(images, Gather.apply(self.weight), Gather.apply(self.bias))


def handmade_source() -> str:
    """Return the source of the sharded layer."""
    return "\n\n".join(map(inspect.getsource, (Gather, ShardedLinear)))


def train_handmade(ranks: int = 2) -> pd.DataFrame:
    """Train a full layer on all images, and a sharded one on a share of them per rank.

    Columns: step, full and sharded (losses over all images), difference (relative). `attrs` has
    the bytes of weights, gradients and optimizer: "full", and "shard" of one rank.

    Raises:
        ValueError: the ranks do not divide the rows and images.
    """
    if IMAGES % ranks:
        raise ValueError(f"ranks={ranks}: expected a divisor of {IMAGES}. Try ranks=2.")
    layer, data = _layer_and_data()
    full, full_bytes = _train(layer, *data)
    results = on_ranks(_train_shard, ranks)
    losses = torch.tensor([losses for losses, _ in results]).mean(dim=0).tolist()
    table = pd.DataFrame({"step": range(STEPS), "full": full, "sharded": losses})
    table["difference"] = (table["sharded"] / table["full"] - 1).abs()
    table.attrs |= {"full": full_bytes, "shard": results[0][1]}
    return table


def _layer_and_data() -> tuple[nn.Linear, list[torch.Tensor]]:
    """Return the same layer, images and targets in each process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(SIZE, SIZE), [torch.randn(IMAGES, SIZE) for _ in range(2)]


def _train_shard(rank: int, ranks: int) -> tuple[list[float], int]:
    layer, data = _layer_and_data()
    return _train(ShardedLinear(layer, rank, ranks), *(part.chunk(ranks)[rank] for part in data))


def _train(
    layer: nn.Module, images: torch.Tensor, targets: torch.Tensor
) -> tuple[list[float], int]:
    """Return each step's loss, and the bytes of weights, gradients and AdamW's state."""
    optimizer, losses = torch.optim.AdamW(layer.parameters(), lr=0.01), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(images), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    means = [mean for state in optimizer.state.values() for mean in state.values() if mean.ndim]
    weights = [*layer.parameters()]
    return losses, sum(t.nbytes for t in [*weights, *(w.grad for w in weights), *means])


def try_accumulation(ranks: int = 2) -> pd.DataFrame:
    """Train four micro-batches under FSDP2, sending gradients after each or only after the last.

    Columns: all_gathers, reduce_scatters, gradient_mib (kept before the last micro-batch), norm (of
    the final gradients, which must be equal).
    """
    rows, *_ = on_ranks(_accumulate_both, ranks)
    return pd.DataFrame(rows, index=["after each", "after the last"])


def _accumulate_both(rank: int, ranks: int) -> list[dict[str, float]]:
    return [_accumulate(sync_each=True), _accumulate(sync_each=False)]


def _accumulate(*, sync_each: bool) -> dict[str, float]:
    from torch.distributed.tensor.debug import CommDebugMode

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    for unit in model:
        fully_shard(unit)
    fully_shard(model)
    images, counts = torch.randn(MICRO_BATCHES * 8, 256).chunk(MICRO_BATCHES), Counter()
    for number, micro_batch in enumerate(images, 1):
        gradient_bytes = _gradient_bytes(model)
        model.set_requires_gradient_sync(sync_each or number == MICRO_BATCHES)
        with CommDebugMode() as mode:  # PyTorch 2.11 counts one forward and backward, not several
            (model(micro_batch).square().mean() / MICRO_BATCHES).backward()
        counts.update({str(name): count for name, count in mode.get_comm_counts().items()})
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    return {
        "all_gathers": sum(count for name, count in counts.items() if "gather" in name),
        "reduce_scatters": sum(count for name, count in counts.items() if "scatter" in name),
        "gradient_mib": gradient_bytes / 2**20,
        "norm": float(norm.full_tensor()),
    }


def _gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of a rank's gradients: shards, and full ones that were not reduced yet."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    total = sum(gradient.to_local().nbytes for gradient in gradients)
    for unit in model:
        unit.unshard()
        total += sum(weight.grad.nbytes for weight in unit.parameters() if weight.grad is not None)
        unit.reshard()
    return total


def try_unsupported() -> pd.DataFrame:
    """Shard a small convolution network in four ways; column error: PyTorch's message, or ""."""
    half = torch.bfloat16
    cases: dict[str, dict[str, Any]] = {
        "weights channels last": {"weights": torch.channels_last},
        "weights contiguous, images channels last": {},
        "BatchNorm, bf16 by a policy": {"policy": MixedPrecisionPolicy(half)},
        "BatchNorm, bf16 by autocast": {"autocast": True},
    }
    errors = {}
    with fake_mesh(1) as mesh:
        for name, settings in cases.items():
            errors[name] = ""
            try:
                _train_convolution(mesh, **settings)
            except (RuntimeError, NotImplementedError) as error:
                errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    return pd.DataFrame.from_dict(errors, orient="index", columns=["error"])


def _train_convolution(
    mesh: DeviceMesh,
    weights: torch.memory_format = torch.contiguous_format,
    policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    autocast: bool = False,
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(memory_format=weights)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(images).float().mean().backward()
