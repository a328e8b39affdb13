"""Every operator that a step calls below autocast, as a table."""

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
    """Counts calls of operators by phase, and by what `describe` says goes in and comes out."""

    def __init__(self, describe: Callable[[list[torch.Tensor]], str]) -> None:
        super().__init__()
        self._describe = describe
        self.calls: Counter[tuple[str, str, str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = self._describe_all((args, kwargs))  # before the call: it may work in place
        output = func(*args, **(kwargs or {}))
        if inputs and not func.is_view:
            # The engine of autograd has a task while it runs backward, and none (-1) otherwise.
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
    """Every kind of call that a step makes below autocast, in order of its first one.

    Columns: phase ("forward" or "backward"), operator, inputs, output, calls. Views, which
    compute nothing, are left out.

    Args:
        step: runs one step of training.
        describe: says what is to be known of tensors; an operator whose inputs are described
            by "" is left out.
    """
    import pandas as pd

    with _Calls(describe) as watch:
        step()
    rows = [(*call, calls) for call, calls in watch.calls.items()]
    return pd.DataFrame(rows, columns=["phase", "operator", "inputs", "output", "calls"])
