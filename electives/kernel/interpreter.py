"""Triton's interpreter, and the memory traffic that it observes.

The interpreter executes a kernel program by program on the CPU, with the addresses of the tensors.
So an access outside of the tensors is detected before it happens.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Traffic:
    """Bytes that kernels read and wrote, in which programs, and the number of `tl.dot` calls."""

    read: int = 0
    written: int = 0
    dots: int = 0
    programs: set[tuple[int, ...]] = field(default_factory=set)


def interpret() -> str:
    """Have Triton interpret kernels in this process, on the CPU, with or without a GPU.

    Call it before kernels are defined.

    Raises:
        RuntimeError: Triton is missing.
    """
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("Triton is missing: PyTorch installs it only on Linux")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    if triton.__version__.startswith("3.6"):
        _allow_loop_bounds()
    # If Triton was imported before, its own functions (sum, max, …) are ready to be compiled.
    for module in (tl, tl.standard, tl.tensor):
        for name, function in list(vars(module).items()):
            if isinstance(function, JITFunction):
                setattr(module, name, InterpretedFunction(function.fn))
    for name, module in [*sys.modules.items()]:
        if re.fullmatch(r"electives\.\w+\.solutions", name):
            importlib.reload(module)
    return "Kernels are interpreted: program by program, on the CPU."


def _allow_loop_bounds() -> None:
    """Let `range` take an argument of a kernel, as in `range(0, K, SIDE)`.

    Triton 3.6 keeps arguments as arrays of one number, which NumPy from 2.4 on doesn't convert to
    an int. Triton 3.7 converts them like this.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index


@contextmanager
def count_traffic(**tensors: torch.Tensor) -> Iterator[Traffic]:
    """Count what kernels read and write in the context, and restrict them to these tensors.

    Raises:
        AssertionError: a kernel reads or writes beyond a tensor (the message says how far), or
            calls `tl.arange` with a beginning that a GPU's compiler rejects.
    """
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    traffic = Traffic()
    names = ("create_masked_load", "create_masked_store", "create_dot", "create_make_range")
    load, store, dot, make_range = originals = [getattr(Builder, name) for name in names]

    def counted_load(self: Any, ptrs: Any, mask: Any, *arguments: Any) -> Any:
        traffic.read += _count_bytes(ptrs, mask, tensors, "reads")
        traffic.programs.add(self.grid_idx)
        return load(self, ptrs, mask, *arguments)

    def counted_store(self: Any, ptrs: Any, value: Any, mask: Any, *arguments: Any) -> Any:
        traffic.written += _count_bytes(ptrs, mask, tensors, "writes")
        traffic.programs.add(self.grid_idx)
        return store(self, ptrs, value, mask, *arguments)

    def counted_dot(self: Any, *tiles: Any) -> Any:
        traffic.dots += 1
        return dot(self, *tiles)

    def checked_range(self: Any, kind: Any, start: int, stop: int) -> Any:
        # The interpreter accepts any bounds, but a GPU's compiler only constants.
        assert start == 0, (
            f"tl.arange begins at {start} here, but on a GPU its bounds must be constants: add a "
            f"number to tl.arange(0, …) instead"
        )
        return make_range(self, kind, start, stop)

    for name, counted in zip(names, (counted_load, counted_store, counted_dot, checked_range)):
        setattr(Builder, name, counted)
    try:
        yield traffic
    except Exception as error:
        cause = error
        while cause and not isinstance(cause, AssertionError):  # the interpreter wraps it
            cause = cause.__cause__
        if cause:
            raise cause from None
        raise
    finally:
        for name, original in zip(names, originals):
            setattr(Builder, name, original)


def _count_bytes(ptrs: Any, mask: Any, tensors: dict[str, torch.Tensor], verb: str) -> int:
    """Count the bytes that a mask lets through, all of which must be in a tensor."""
    size = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
    addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].astype(np.int64)
    spans = {
        name: (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        for name, tensor in tensors.items()
    }
    outside = np.ones(addresses.shape, bool)
    for begin, end in spans.values():
        outside &= (addresses < begin) | (addresses >= end)
    if outside.any():
        first = int(addresses[outside][0])
        # The kernel probably meant the tensor with the nearest end or beginning.
        name = min(spans, key=lambda name: min(abs(first - edge) for edge in spans[name]))
        begin, end = spans[name]
        distance = (
            f"{(first - end) // size + 1} beyond the end"
            if first >= end
            else "before the beginning"
        )
        count = f"{outside.sum()} number{'s' if outside.sum() > 1 else ''}"
        raise AssertionError(
            f"it {verb} {count} outside of its tensors, the first {distance} of {name}: is an "
            f"offset wrong, or does a mask let it through?"
        )
    return int(addresses.size * size)
