"""NVIDIA's own solver with refinement, cuSOLVER's `cusolverDnD?gesv`, called as it is from C.

PyTorch loads the library for its linear algebra, and has no name for these functions. They take
and give fp64; the letter says in what they factor. Where refinement does not converge they factor
again in fp64, so that the answer is always good, and say so by a negative count of iterations.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

LETTERS = {"fp64": "D", "fp32": "S", "tf32": "X", "fp16": "H", "bf16": "B"}


def solve(a: torch.Tensor, b: torch.Tensor, precision: str) -> tuple[torch.Tensor, int]:
    """x of A·x = b, factored in a precision, and the number of corrections; negative: none helped.

    Args:
        a: fp64 on a GPU, its columns one after the other in memory (`a.t().contiguous().t()`). It
            may be overwritten.
        b: fp64, one vector.

    Raises:
        ValueError: an unknown precision, or tensors of another kind.
        RuntimeError: the library refused, with its number for why.
    """
    if precision not in LETTERS:
        raise ValueError(f"precision={precision!r}: choose {', '.join(LETTERS)}")
    if not (a.is_cuda and a.dtype == b.dtype == torch.float64 and a.t().is_contiguous()):
        raise ValueError("A and b must be fp64 on a GPU, A's columns one after the other in memory")
    name, size = f"cusolverDnD{LETTERS[precision]}gesv", len(b)
    x, pivots = torch.empty_like(b), torch.empty(size, dtype=torch.int32, device=a.device)
    info = torch.zeros(1, dtype=torch.int32, device=a.device)
    n, p = ctypes.c_int(size), ctypes.c_void_p
    system = [
        *(_handle(), n, ctypes.c_int(1), p(a.data_ptr()), n, p(pivots.data_ptr())),
        *(p(b.data_ptr()), n, p(x.data_ptr()), n),
    ]
    needed, iterations = ctypes.c_size_t(), ctypes.c_int()
    _call(f"{name}_bufferSize", *system, p(0), ctypes.byref(needed))
    room = torch.empty(needed.value, dtype=torch.uint8, device=a.device)
    counted = ctypes.byref(iterations)
    _call(name, *system, p(room.data_ptr()), needed, counted, p(info.data_ptr()))
    if info.item():
        raise RuntimeError(f"{name} found no solution (info {info.item()}): is A singular?")
    return x, iterations.value


@cache
def _library() -> ctypes.CDLL:
    """The very file that PyTorch has loaded."""
    torch.linalg.lu_factor(torch.eye(2, device="cuda", dtype=torch.float64))
    maps = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcusolver.so" in line))


@cache
def _handle() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call("cusolverDnCreate", ctypes.byref(handle))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _call("cusolverDnSetStream", handle, stream)
    return handle


def _call(name: str, *arguments: object) -> None:
    if status := getattr(_library(), name)(*arguments):
        raise RuntimeError(f"{name} says {status} (cusolverStatus_t)")
