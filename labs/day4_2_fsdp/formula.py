"""Who keeps what: bytes a rank under ZeRO 0 to 3, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course.config import GIB

if TYPE_CHECKING:
    import pandas as pd

# Bytes of a weight in fp32: itself, its gradient, and what AdamW keeps, two means.
KINDS = {"weights": 4, "gradients": 4, "optimizer": 8}
SHARED = {  # what each stage shares out, one kind more than the one before
    0: (),
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "weights"),
}


def kept(parameters: int, ranks: int, stages: Sequence[int] = (0, 1, 2, 3)) -> pd.DataFrame:
    """GiB that each rank keeps between steps: a row for each stage and kind.

    Of Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054, section 5), for weights in fp32 and AdamW;
    there, in mixed precision as it was, a weight has 2 + 2 + 12 bytes. Stage 0 is DDP. Columns:
    stage, kind, gib. Activations are not in it: they follow the images of a rank.

    Raises:
        ValueError: an unknown stage, or no rank.
    """
    import pandas as pd

    if ranks < 1 or {*stages} - {*SHARED}:
        raise ValueError(f"stages={[*stages]}, ranks={ranks}: choose of {[*SHARED]}, and 1 or more")
    rows = [
        (stage, kind, size * parameters / (ranks if kind in SHARED[stage] else 1) / GIB)
        for stage in stages
        for kind, size in KINDS.items()
    ]
    return pd.DataFrame(rows, columns=["stage", "kind", "gib"])


def sent(parameters: int, ranks: int) -> pd.DataFrame:
    """GB that each rank sends in a step, in fp32, by way: ddp, zero2, zero3.

    An all-gather or a reduce-scatter of n bytes sends n (p − 1)/p from each of p ranks, and an
    all-reduce is one of each. zero2 gathers once and scatters once, as much as DDP's all-reduce;
    zero3 gathers again in backward, half as much again.
    """
    import pandas as pd

    once = 4 * parameters * (ranks - 1) / ranks / 1e9
    found = {"ddp": (0, 0, 2), "zero2": (1, 1, 0), "zero3": (2, 1, 0)}
    names = ["all-gather", "reduce-scatter", "all-reduce"]
    table = pd.DataFrame(found, index=names).T * once
    return table.assign(together=table.sum(axis=1))
