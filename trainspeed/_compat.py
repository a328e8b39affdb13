"""The private names of PyTorch that trainspeed uses, each with its reason.

PyTorch 2.11 and 2.15 have no public name for them; tested with both.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (  # tensors with a size and a device, without numbers
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode  # TorchFunctionMode is above autocast
from torch.utils._pytree import tree_leaves, tree_map_only  # nested lists, tuples and dicts

# Of a fake tensor, an operator asked for a number, or for a size that depends on numbers.
NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException)
# Fake tensors are on the CPU, where scaled_dot_product_attention would choose other kernels.
efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
math_attention = torch.ops.aten._scaled_dot_product_attention_math
__all__ = ["FakeTensorMode", "TorchDispatchMode", "tree_leaves", "tree_map_only"]


def memory_tracker() -> Any:
    """Return PyTorch's tracker of the memory that tensors use, by kind."""
    from torch.distributed._tools.mem_tracker import MemTracker

    return MemTracker()


def arguments_of(operator: Any) -> list[Any]:
    """Return an operator's arguments: nothing else tells which it writes to (`is_write`)."""
    return operator._schema.arguments


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts, and in a model's output."""
    if isinstance(values, Mapping):
        values = [*values.values()]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
