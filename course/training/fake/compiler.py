"""In the place of PyTorch's compiler: it notes what it is given, and compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn


@dataclass
class Asked:
    """One call of the compiler, and how often what it gave back was called.

    mode: as torch.compile has it, "default" where none was given. with_ddp: did what was to be
    compiled hold the wrapper of DistributedDataParallel?
    """

    mode: str
    with_ddp: bool
    calls: int = 0


class _Wrapper(nn.Module):
    """What torch.compile gives back for a network: a module around it, with its attributes."""

    def __init__(self, module: nn.Module, asked: Asked) -> None:
        super().__init__()
        self._orig_mod, self._asked = module, asked

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._asked.calls += 1
        return self._orig_mod(*inputs, **named)


@contextmanager
def noting(asked: list[Asked], parallel: type[nn.Module]) -> Iterator[None]:
    """From here on `torch.compile` and `Module.compile` add to the list what they are asked.

    Args:
        parallel: the class of what stands in the place of DistributedDataParallel.
    """

    def note(target: Any, options: dict[str, Any]) -> Asked:
        modules = target.modules() if isinstance(target, nn.Module) else ()
        with_ddp = any(isinstance(each, parallel) for each in modules)
        asked.append(Asked(options.get("mode") or "default", with_ddp))
        return asked[-1]

    def compiles(model: Any = None, **options: Any) -> Any:
        if model is None:  # as a decorator with arguments
            return lambda each: compiles(each, **options)
        if options.get("disable"):
            return model
        found = note(model, options)
        return _Wrapper(model, found) if isinstance(model, nn.Module) else _counting(model, found)

    def in_place(module: nn.Module, **options: Any) -> None:
        if not options.get("disable"):
            module._compiled_call_impl = _counting(module._call_impl, note(module, options))

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "compile", compiles))
        stack.enter_context(patch.object(nn.Module, "compile", in_place))
        yield


def _counting(function: Callable, asked: Asked) -> Callable:
    def counted(*inputs: Any, **named: Any) -> Any:
        asked.calls += 1
        return function(*inputs, **named)

    return counted
