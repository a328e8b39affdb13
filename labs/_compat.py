"""The private names of PyTorch that only labs use; 2.11 and 2.15 have no other.

Importing them takes seconds, as importing torchvision does.
"""

from torch import nn
from torch._dynamo import explain  # the compiler's public logs are text

# torch.compiler.reset keeps kernels in memory; the public logs of generated code are text.
from torch._inductor.utils import clear_caches, run_and_get_code
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # without stages

__all__ = ["FSDPMemTracker", "clear_caches", "explain", "get_schedule_ops", "run_and_get_code"]


def hooks(network: nn.Module) -> set[int]:
    """Return the numbers of a network's forward hooks; a handle knows only its own."""
    modules = network.modules()
    return {key for m in modules for key in (*m._forward_hooks, *m._forward_pre_hooks)}
