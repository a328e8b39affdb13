"""One linear layer shared out by hand, and what one accumulation costs: on real processes."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from labs.day4_2_fsdp.processes import on_ranks

if TYPE_CHECKING:
    import pandas as pd

SIZE, IMAGES, STEPS = 64, 8, 5
BLOCKS, MICRO_BATCHES = 4, 4  # of what accumulates


class Gather(torch.autograd.Function):
    """Forward: all ranks' parts become the whole. Backward: whole gradients become parts."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        whole = part.new_empty(len(part) * distributed.get_world_size(), *part.shape[1:])
        distributed.all_gather_into_tensor(whole, part)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        ranks = distributed.get_world_size()
        part = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
        distributed.reduce_scatter_tensor(part, gradient.contiguous())  # added up over the ranks
        return part / ranks


class ShardedLinear(nn.Module):
    """A linear layer, of whose weight each rank keeps some rows."""

    def __init__(self, whole: nn.Linear, rank: int, ranks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().chunk(ranks)[rank].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(images, Gather.apply(self.weight), Gather.apply(self.bias))


def source() -> str:
    """The layer by hand, as its lines stand here."""
    return "\n\n".join(inspect.getsource(each) for each in (Gather, ShardedLinear))


def by_hand(ranks: int = 2) -> pd.DataFrame:
    """Train one layer whole, on all images, and sharded, on a share of them: a row a step.

    Columns: step, whole and sharded (the loss over all images), apart (relative). `attrs` hold the
    bytes that a rank keeps with AdamW's state, "kept", and those of the whole, "whole".

    Raises:
        ValueError: ranks that cannot share rows and images evenly.
    """
    import pandas as pd

    if SIZE % ranks or IMAGES % ranks:
        raise ValueError(f"ranks={ranks}: {SIZE} rows and {IMAGES} images are to be shared evenly")
    whole, size = _trained(nn.Linear(SIZE, SIZE), *_data())
    found = on_ranks(_sharded, ranks)
    losses = torch.tensor([losses for losses, _ in found]).mean(dim=0).tolist()
    table = pd.DataFrame({"step": range(STEPS), "whole": whole, "sharded": losses})
    table["apart"] = (table["sharded"] / table["whole"] - 1).abs()
    table.attrs |= {"kept": found[0][1], "whole": size}
    return table


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return tuple(torch.randn(IMAGES, SIZE, generator=random) for _ in range(2))


def _sharded(rank: int, ranks: int) -> tuple[list[float], int]:
    layer = nn.Linear(SIZE, SIZE)
    _seeded(layer)
    share = [each.chunk(ranks)[rank] for each in _data()]
    return _trained(ShardedLinear(layer, rank, ranks), *share, seeded=True)


def _seeded(layer: nn.Linear) -> None:
    random = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=SIZE**-0.5, generator=random)


def _trained(
    layer: nn.Module, images: torch.Tensor, targets: torch.Tensor, *, seeded: bool = False
) -> tuple[list[float], int]:
    """The loss of each step, and bytes of weights, gradients and AdamW's state at the end."""
    if not seeded:
        _seeded(layer)
    optimizer, losses = torch.optim.AdamW(layer.parameters(), lr=0.01), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(images), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states = [each for state in optimizer.state.values() for each in state.values() if each.ndim]
    kept = [*layer.parameters(), *(each.grad for each in layer.parameters()), *states]
    return losses, sum(each.numel() * each.element_size() for each in kept)


def accumulated(ranks: int = 2) -> pd.DataFrame:
    """Four micro-batches under FSDP2, with and without gradients sent behind each.

    Rows: "behind each" as it comes, "behind the last" with set_requires_gradient_sync(False) until
    then. Columns: all_gathers, reduce_scatters, gradient_mib (kept before the last micro-batch),
    norm (of the gradients at the end, which must be the same).
    """
    import pandas as pd

    found, *_ = on_ranks(_accumulate, ranks)
    return pd.DataFrame(found, index=["behind each", "behind the last"])


def _accumulate(rank: int, ranks: int) -> list[dict[str, float]]:
    return [_accumulate_by(silent) for silent in (False, True)]


def _accumulate_by(silent: bool) -> dict[str, float]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(BLOCKS)))
    for unit in model:
        fully_shard(unit)
    fully_shard(model)
    images, counts = torch.randn(MICRO_BATCHES * 8, 256).chunk(MICRO_BATCHES), Counter()
    for number, micro_batch in enumerate(images, 1):
        held = _gradient_bytes(model)
        model.set_requires_gradient_sync(not silent or number == MICRO_BATCHES)
        with CommDebugMode() as mode:  # PyTorch 2.11's counts one forward and backward, not several
            (model(micro_batch).square().mean() / MICRO_BATCHES).backward()
        counts.update({str(name): count for name, count in mode.get_comm_counts().items()})
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    return {
        "all_gathers": sum(count for name, count in counts.items() if "gather" in name),
        "reduce_scatters": sum(count for name, count in counts.items() if "scatter" in name),
        "gradient_mib": held / 2**20,
        "norm": float(norm.full_tensor()),
    }


def _gradient_bytes(model: nn.Module) -> int:
    """Bytes of gradients this rank holds: shards, or full ones that were not reduced yet."""
    held = sum(each.grad.to_local().nbytes for each in model.parameters() if each.grad is not None)
    for unit in model:
        unit.unshard()
        held += sum(each.grad.nbytes for each in unit.parameters() if each.grad is not None)
        unit.reshard()
    return held
