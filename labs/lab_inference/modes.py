"""What a network answers that was left in training's mode."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import pandas as pd
from torch import nn

from labs.lab_inference.training import top1


def forgotten(
    model: nn.Module, batches: Iterable[int] = (256, 32, 4, 1), images: int = 1024
) -> pd.DataFrame:
    """Accuracy of a network that was left in training's mode, by how many images it gets at once.

    Columns: batch, "eval() forgotten", "eval() after that": BatchNorm's averages are others then.
    """
    rows = []
    for batch in batches:
        left = deepcopy(model).train()
        wrong = top1(left, images, batch)
        late = top1(left.eval(), images)
        rows.append({"batch": batch, "eval() forgotten": wrong, "eval() after that": late})
    return pd.DataFrame(rows)
