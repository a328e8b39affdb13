"""Every private API of PyTorch and Triton that this library uses, with why, in one place.

Tested with PyTorch 2.11 to 2.15 and Triton 3.6 to 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import _disable_current_modes

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)


def without_dispatch_modes() -> AbstractContextManager:
    """Hide operators from dispatch modes: one that reads results would wait for the device."""
    return _disable_current_modes()


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether any of these modules, or every module of this process, has a hook."""
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        return True
    return any(each.__dict__[name] for each in modules for name in HOOKS)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is inside a torch.func transform (grad, vmap, jvp)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def active_ddp() -> DDP | None:
    """The DistributedDataParallel whose forward is running in this thread."""
    return DDP._get_active_ddp_module()


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function once the backward pass that is running has ended."""
    Variable._execution_engine.queue_callback(callback)


def forget_failed_kernels(kernels: Iterable[Any]) -> None:
    """Remove kernels whose asynchronous compilation failed from Triton's caches.

    Triton 3.7 and 3.8 keep them, and every later launch would get the thread's error.
    """
    from triton.runtime._async_compile import FutureKernel

    for kernel in kernels:
        for known, *_ in kernel.device_caches.values():
            for key, each in [*known.items()]:
                if isinstance(each, FutureKernel) and each.kernel is None:
                    del known[key]
