"""List every operator that a step calls below autocast, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    import pandas as pd


class _Calls(TorchDispatchMode):
    """Counts operator calls by phase, and by the descriptions of their inputs and outputs."""

    def __init__(self, describe: Callable[[list[torch.Tensor]], str]) -> None:
        super().__init__()
        self._describe = describe
        self.calls: Counter[tuple[str, str, str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = self._describe_all((args, kwargs))  # before the call, which may work in place
        output = func(*args, **(kwargs or {}))
        if inputs and not func.is_view:
            # Autograd's engine has a task while it runs backward, and none (-1) otherwise.
            backward = torch._C._current_graph_task_id() != -1
            name = func._schema.name.removeprefix("aten::")
            phase = "backward" if backward else "forward"
            self.calls[phase, name, inputs, self._describe_all(output)] += 1
        return output

    def _describe_all(self, values: Any) -> str:
        return self._describe([x for x in tree_leaves(values) if isinstance(x, torch.Tensor)])


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
