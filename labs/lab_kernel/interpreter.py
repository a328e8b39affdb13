"""What a kernel moves, counted by Triton's interpreter: each number that is read or written.

The interpreter executes a kernel program by program on the CPU, with the very addresses of the
tensors. So it is seen, too, where a program reaches beyond them, before it does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Moved:
    """Bytes that a kernel read and wrote, in which programs, and how often it multiplied tiles."""

    read: int = 0
    written: int = 0
    dots: int = 0  # products of two tiles
    at: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        """Read and written together."""
        return self.read + self.written

    @property
    def programs(self) -> int:
        """Those that moved anything."""
        return len(self.at)


def interpret() -> str:
    """Have Triton interpret kernels in this process, on the CPU, with or without a GPU.

    Call it before kernels are defined.

    Raises:
        RuntimeError: Triton is not here.
    """
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("Triton is not here: PyTorch brings it on Linux alone")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    if triton.__version__.startswith("3.6"):
        _allow_loop_bounds()
    # Where Triton was imported before, its own functions (sum, max, …) are there to be compiled.
    for home in (tl, tl.standard, tl.tensor):
        for name, each in list(vars(home).items()):
            if isinstance(each, JITFunction):
                setattr(home, name, InterpretedFunction(each.fn))
    if ours := sys.modules.get("labs.lab_kernel.solutions"):
        importlib.reload(ours)
    return "Kernels are interpreted: program by program, on the CPU."


def _allow_loop_bounds() -> None:
    """Let `range` take an argument of a kernel, as in `range(0, K, SIDE)`.

    Triton 3.6 keeps arguments as arrays of one number, which NumPy from 2.4 on doesn't convert to
    an int. Triton 3.7 converts them as is done here.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index


@contextmanager
def counting(**tensors: torch.Tensor) -> Iterator[Moved]:
    """Count what kernels move meanwhile, and let them touch these tensors alone.

    Raises:
        AssertionError: a kernel reads or writes beyond a tensor; the message says how far.
    """
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    moved, names = Moved(), ("create_masked_load", "create_masked_store", "create_dot")
    load, store, dot = before = [getattr(Builder, name) for name in names]
    spans = {name: _span(each) for name, each in tensors.items()}

    def counted_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        moved.read += _bytes(ptrs, mask, spans, "reads")
        moved.at.add(self.grid_idx)
        return load(self, ptrs, mask, *rest)

    def counted_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        moved.written += _bytes(ptrs, mask, spans, "writes")
        moved.at.add(self.grid_idx)
        return store(self, ptrs, value, mask, *rest)

    def counted_dot(self: Any, *tiles: Any) -> Any:
        moved.dots += 1
        return dot(self, *tiles)

    for name, counted in zip(names, (counted_load, counted_store, counted_dot)):
        setattr(Builder, name, counted)
    try:
        yield moved
    except Exception as error:
        if (told := _cause(error)) is not error:
            raise told from error
        raise
    finally:
        for name, each in zip(names, before):
            setattr(Builder, name, each)


def moved_by(launch: Callable[..., Any], **tensors: torch.Tensor) -> Moved:
    """What one launch moves; it is given the tensors by name."""
    with counting(**tensors) as moved:
        launch(**tensors)
    return moved


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.itemsize


def _bytes(ptrs: Any, mask: Any, spans: dict[str, tuple[int, int]], does: str) -> int:
    """Bytes of the numbers that a mask lets through, all of which lie in a tensor."""
    size = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
    let = np.broadcast_to(mask.data, ptrs.data.shape)
    places = ptrs.data[let].astype(np.int64)
    inside = np.zeros(places.shape, bool)
    for begin, end in spans.values():
        inside |= (places >= begin) & (places < end)
    if not inside.all():
        raise AssertionError(_beyond(places[~inside], spans, size, does))
    return int(places.size * size)


def _beyond(places: np.ndarray, spans: dict[str, Any], size: int, does: str) -> str:
    """Which tensor was meant: the one whose end, or begin, is nearest."""
    first = int(places[0])
    far = {name: min(abs(first - end), abs(first - begin)) for name, (begin, end) in spans.items()}
    name = min(far, key=far.get)
    begin, end = spans[name]
    side = f"{(first - end) // size + 1} beyond the end" if first >= end else "before the begin"
    return (
        f"it {does} {places.size} numbers that are none of its tensors', the first {side} of "
        f"{name}: is a place wrong, or does a mask let it through?"
    )


def _cause(error: BaseException) -> BaseException:
    """The words for a learner, wherever the interpreter wrapped them."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, AssertionError):
            return found
        found = found.__cause__
    return error
