"""All private APIs of PyTorch and Triton that this library uses, and why, in one place.

Tested with PyTorch 2.11 to 2.15 and Triton 3.6 to 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)


def without_dispatch_modes() -> AbstractContextManager:
    """Hide operators from dispatch modes: a mode that reads results would wait for the device."""
    return _disable_current_modes()


def has_hooks(modules: Iterable[nn.Module], stages: Sequence[nn.Module | None] = ()) -> bool:
    """Return whether any of these modules, or every module of this process, has a hook.

    Forward hooks of `stages` do not count.
    """
    if any(getattr(torch_module, name, None) for name in GLOBAL_HOOKS):
        return True
    for module in modules:  # in loops: any() would take twice as long
        members = module.__dict__
        for name in HOOKS:
            if members[name] and not (name == HOOKS[0] and module in stages):
                return True
    return False


def call_forward_hooks(module: nn.Module, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Call a module's forward hooks as after `out = module(x)`; return the output they leave."""
    for key, hook in [*module.__dict__[HOOKS[0]].items()]:
        keywords = [{}] if key in module.__dict__["_forward_hooks_with_kwargs"] else []
        result = hook(module, (x,), *keywords, out)
        out = out if result is None else result
    return out


def has_tensor_hooks(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether any of these leaves has a hook on its gradient."""
    return any(tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in tensors)


def modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield what `module.modules()` does, in a tenth of its time (a millisecond for ResNet-50)."""
    yield module
    for child in module._modules.values():
        if child is not None:
            yield from modules_of(child)


def tensors_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Return the modules' own parameters and buffers, faster than `parameters()`, `buffers()`."""
    members = [kind for module in modules for kind in (module._parameters, module._buffers)]
    return [tensor for kind in members for tensor in kind.values() if tensor is not None]


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is inside a torch.func transform (grad, vmap, jvp)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def active_ddp() -> DDP | None:
    """Return the DistributedDataParallel whose forward is running in this thread."""
    return DDP._get_active_ddp_module()


def communication_hook(ddp: DDP) -> tuple[Callable, object] | None:
    """Return the function and the state that `register_comm_hook` received; None without."""
    return next(reversed(ddp._comm_hooks), None)


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function once the backward pass that is running has ended."""
    Variable._execution_engine.queue_callback(callback)


def copy_all(destinations: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy many tensors in few launches."""
    torch._foreach_copy_(destinations, sources)


def add_one(tensors: Sequence[torch.Tensor]) -> None:
    """Add 1 to many tensors in few launches."""
    torch._foreach_add_(tensors, 1)


def convolution_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    stride: tuple[int, int],
    padding: int,
    groups: int,
    with_input: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Compute the gradients of x (if `with_input`) and of w with cuDNN; no bias or dilation.

    torch.nn.grad has a function for each; with these two, steps took longer on an H100.
    """
    dx, dw, _ = torch.ops.aten.convolution_backward(
        *(dy, x, w, None, stride, (padding, padding), (1, 1), False, (0, 0), groups),
        (with_input, True, False),
    )
    return dx, dw
