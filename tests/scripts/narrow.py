"""The checks' small networks, for scripts that tests start."""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from course.checks import tiny_networks  # noqa: F401 - tests set its DEPTH
from course.checks.tiny_networks import *  # noqa: F403
from course.checks.tiny_networks import create
from course.training import models


def use() -> None:
    """Let scripts of this process train these as their resnet18 and transformers from now on."""
    models.create = create


def leave_all() -> None:
    """Leave contexts that a script may have entered and never left: autocast and dispatch modes.

    Within autocast, PyTorch caches the weights that it has cast, by the weights' addresses, and
    could use those of one script for another.
    """
    while watching := _get_current_dispatch_mode():  # otherwise it would see later operators
        watching.__exit__(None, None, None)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
