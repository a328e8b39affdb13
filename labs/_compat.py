"""The private names of PyTorch that labs and electives use, each with its reason.

PyTorch 2.11 and 2.15 have no public name for them; tested with both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course._compat import TorchDispatchMode, compiler_counters, tensors_in, tree_map_only

__all__ = ["TorchDispatchMode", "compiler_counters", "tensors_in", "tree_map_only"]


def hooks(network: nn.Module) -> set[int]:
    """Return the numbers of a network's forward hooks; a handle knows only its own."""
    modules = network.modules()
    return {key for m in modules for key in (*m._forward_hooks, *m._forward_pre_hooks)}


def explain(function: Callable, *inputs: torch.Tensor) -> Any:
    """Return the compiler's graphs and the reasons of its breaks; its public logs are text."""
    return torch._dynamo.explain(function)(*inputs)


def generated_code(function: Callable, *inputs: torch.Tensor) -> list[str]:
    """Return the code that Inductor generates for these inputs; its public logs are text."""
    from torch._inductor.utils import run_and_get_code

    return run_and_get_code(torch.compile(function), *inputs)[1]


def forget_kernels() -> None:
    """Forget kernels in memory, and read the disk again; torch.compiler.reset forgets graphs."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def shard_tracker(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Return PyTorch's tracker of the memory that an FSDP model's tensors use, by kind."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    return FSDPMemTracker(model, optimizer)


def schedule_actions(name: str, ranks: int, micro_batches: int, stages_per_rank: int) -> list:
    """Return each rank's actions in a pipeline schedule; a schedule itself needs real stages."""
    from torch.distributed.pipelining import _schedule_visualizer as visualizer

    return visualizer.get_schedule_ops(name, ranks, micro_batches, stages_per_rank)
