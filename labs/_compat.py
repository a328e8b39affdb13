"""The private names of PyTorch that only labs use; 2.11 and 2.15 have no other.

Importing them takes seconds, as importing torchvision does.
"""

from itertools import chain

from torch import nn
from torch._dynamo import explain  # the compiler's public logs are text

# The public logs of generated code are text.
from torch._inductor.utils import run_and_get_code
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # without stages
from torch.nn.modules import module as every_module

__all__ = ["FSDPMemTracker", "explain", "get_schedule_ops", "run_and_get_code"]


def hooks(network: nn.Module) -> set[int]:
    """Return the numbers of a network's and all modules' hooks; a handle has only its own."""
    every = [every_module._global_forward_hooks, every_module._global_forward_pre_hooks]
    own = [hooks for m in network.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)]
    return {*chain(*every, *own)}
