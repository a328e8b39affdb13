"""List every operator that a step calls below autocast, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.module_tracker import ModuleTracker

from course._compat import TorchDispatchMode, tensors_in

if TYPE_CHECKING:
    import pandas as pd


class _Calls(TorchDispatchMode):
    """Counts operator calls by phase, and by the descriptions of their inputs and outputs."""

    def __init__(self, describe: Callable[[list[torch.Tensor]], str]) -> None:
        super().__init__()
        self._describe, self._autograd = describe, ModuleTracker()
        self.calls: Counter[tuple[str, str, str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = self._describe(tensors_in((args, kwargs)))  # before a call that works in place
        output = func(*args, **(kwargs or {}))
        if inputs and not func.is_view:
            name = func.name().partition(".")[0].removeprefix("aten::")
            phase = "backward" if self._autograd.is_bw else "forward"
            self.calls[phase, name, inputs, self._describe(tensors_in(output))] += 1
        return output


def operator_calls(
    step: Callable[[], Any], describe: Callable[[list[torch.Tensor]], str]
) -> pd.DataFrame:
    """Return a row for each kind of operator call in a step below autocast, in order of first use.

    Columns: phase ("forward" or "backward"), operator, inputs, output, calls. Views, which
    compute nothing, are left out.

    Args:
        step: runs one step of training.
        describe: returns a description of tensors, for instance their types; an operator whose
            inputs have the description "" is left out.
    """
    import pandas as pd

    with _Calls(describe) as watch:
        step()
    rows = [(*call, calls) for call, calls in watch.calls.items()]
    return pd.DataFrame(rows, columns=["phase", "operator", "inputs", "output", "calls"])
