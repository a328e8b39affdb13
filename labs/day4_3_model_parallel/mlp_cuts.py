"""An MLP cut over ranks in four ways, by matrix products alone: which cut sends what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed, nn

from labs.day4_2_fsdp.processes import on_ranks

if TYPE_CHECKING:
    import pandas as pd

IMAGES, CHANNELS, HIDDEN = 8, 16, 64


def cuts(ranks: int = 2) -> pd.DataFrame:
    """Four ways to share out x → gelu(x A) B over ranks: what each sends, and whether it is right.

    Every rank has all of x. Columns of a matrix make some of the hidden channels; rows take some,
    and give a part of a sum. Table: a row a way; messages and kib (that a rank hands to them) in
    the forward pass, error (largest, relative to the largest number of the whole MLP's result).
    """
    import pandas as pd

    found, *_ = on_ranks(_cut_all_ways, ranks)
    return pd.DataFrame.from_dict(found, orient="index")


def _cut_all_ways(rank: int, ranks: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    images = torch.randn(IMAGES, CHANNELS)
    first, second = torch.randn(CHANNELS, HIDDEN), torch.randn(HIDDEN, CHANNELS)
    whole = nn.functional.gelu(images @ first) @ second
    ways = {
        "columns, then rows": _columns_rows,
        "columns, then columns": _columns_columns,
        "rows, then columns": _rows_columns,
        "rows, gelu of each part": _rows_too_late,
    }
    found = {}
    for name, way in ways.items():
        sent: list[int] = []
        result = way(images, first, second, _Ranks(rank, ranks, sent))
        error = (result - whole).abs().max() / whole.abs().max()
        found[name] = {
            "messages": len(sent),
            "kib": sum(sent) / 1024,
            "error": float(error),
        }
    return found


class _Ranks:
    """This rank's parts of tensors, and the messages by which parts become a whole."""

    def __init__(self, rank: int, ranks: int, sent: list[int]) -> None:
        self._rank, self._ranks, self._sent = rank, ranks, sent

    def part(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        return whole.chunk(self._ranks, dim)[self._rank]

    def added(self, part: torch.Tensor) -> torch.Tensor:
        self._sent.append(part.numel() * part.element_size())
        distributed.all_reduce(part)
        return part

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """Columns of all ranks, side by side."""
        self._sent.append(part.numel() * part.element_size())
        parts = [torch.empty_like(part) for _ in range(self._ranks)]
        distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=1)


Matrix = torch.Tensor


def _columns_rows(x: Matrix, first: Matrix, second: Matrix, of: _Ranks) -> Matrix:
    hidden = nn.functional.gelu(x @ of.part(first, 1))
    return of.added(hidden @ of.part(second, 0))


def _columns_columns(x: Matrix, first: Matrix, second: Matrix, of: _Ranks) -> Matrix:
    hidden = of.joined(nn.functional.gelu(x @ of.part(first, 1)))
    return of.joined(hidden @ of.part(second, 1))


def _rows_columns(x: Matrix, first: Matrix, second: Matrix, of: _Ranks) -> Matrix:
    hidden = of.added(of.part(x, 1) @ of.part(first, 0))
    return of.joined(nn.functional.gelu(hidden) @ of.part(second, 1))


def _rows_too_late(x: Matrix, first: Matrix, second: Matrix, of: _Ranks) -> Matrix:
    hidden = of.added(nn.functional.gelu(of.part(x, 1) @ of.part(first, 0)))
    return of.joined(hidden @ of.part(second, 1))
