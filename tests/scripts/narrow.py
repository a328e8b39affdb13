"""The checks' small networks, for scripts that tests start."""

import os

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from course.checks import tiny_networks  # noqa: F401 - tests set its DEPTH
from course.checks.tiny_networks import *  # noqa: F403
from course.checks.tiny_networks import create
from course.training import memory, models


def use() -> None:
    """From here on, scripts of this process train these as their resnet18 and transformers."""
    models.create = create
    if "NO_HOST_MEMORY" in os.environ:
        memory.host_gib = lambda: 0.0


def leave_all() -> None:
    """End what a script may have entered and never left: autocast, and what watches operators.

    Within autocast PyTorch keeps the weights that it has cast. It finds them by where a weight
    lies, and would take those of one script for another's.
    """
    while watching := _get_current_dispatch_mode():  # or each later operator goes through it, too
        watching.__exit__(None, None, None)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
