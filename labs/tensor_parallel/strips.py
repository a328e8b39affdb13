"""Spatial partitioning: ranks that each convolve a strip of an image."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pandas as pd
import torch
from torch import distributed, nn
from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

from course.analysis import on_ranks
from labs.tensor_parallel.tensors import relative_error

SIDE, KERNEL = 64, 3
RANKS = 4


def exchange_halo(strip: torch.Tensor, halo: int) -> torch.Tensor:
    """Return a strip with `halo` rows of each neighbour, or zeros at the image's border."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    own = {-1: strip[:, :, :halo].contiguous(), 1: strip[:, :, -halo:].contiguous()}
    received = {side: torch.zeros_like(rows) for side, rows in own.items()}
    messages = []
    for side, rows in own.items():
        if 0 <= rank + side < ranks:
            messages.append(P2POp(isend, rows, rank + side))
            messages.append(P2POp(irecv, received[side], rank + side))
    for message in batch_isend_irecv(messages):
        message.wait()
    return torch.cat([received[-1], strip, received[1]], dim=2)


def exchange_source() -> str:
    """Return the code of `exchange_halo`."""
    return inspect.getsource(exchange_halo)


def compare_halos() -> pd.DataFrame:
    """Convolve an image in strips on four ranks, without and with an exchange of rows.

    Columns: wrong_rows (of the image), error (relative, of the result).
    """
    rows, *_ = on_ranks(_convolve_strips, RANKS)
    return pd.DataFrame.from_dict(rows, orient="index")


def _convolve_strips(rank: int, ranks: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    image = torch.randn(1, 8, SIDE, SIDE)
    layer = nn.Conv2d(8, 8, KERNEL, padding=KERNEL // 2)
    layer_of_strips = nn.Conv2d(8, 8, KERNEL, padding=(0, KERNEL // 2))  # rows come from outside
    layer_of_strips.load_state_dict(layer.state_dict())
    strip = image.chunk(ranks, dim=2)[rank]
    rows = {}
    with torch.no_grad():
        full = layer(image)
        for name, part in {
            "no exchange": layer(strip),
            "with neighbours' rows": layer_of_strips(exchange_halo(strip, KERNEL // 2)),
        }.items():
            parts = [torch.empty_like(part) for _ in range(ranks)]
            distributed.all_gather(parts, part.contiguous())
            joined = torch.cat(parts, dim=2)
            wrong = (joined - full).abs().amax((0, 1, 3)) > 1e-5
            rows[name] = {"wrong_rows": int(wrong.sum()), "error": relative_error(joined, full)}
    return rows


def halo_shares(sides: Sequence[int], ranks: int, kernel: int = 3) -> pd.DataFrame:
    """Compute the rows that a rank receives for one convolution, as a share of its strip's rows.

    A rank between two others receives kernel // 2 rows from each. A row per stride of the layer,
    relative to the image; a column per side of the image. NaN: some strip has no complete row.
    """
    strides = (1, 4, 8, 16, 32)
    table = pd.DataFrame(
        {f"{side} px": [side // stride / ranks for stride in strides] for side in sides},
        index=pd.Index(strides, name="stride"),
    )
    return 2 * (kernel // 2) / table.where(table >= 1)
