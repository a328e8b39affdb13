"""The recorded part of refinement: solving A·x = b on a GPU, by the format of the factors.

    python -m research.refinement OUT.jsonl [--limit SECONDS]

A: normal random numbers ("random"); the same with 3 sqrt(n) added to its diagonal, so that its
condition number is at most 5 ("easy"); of size 8,192 with a condition number ("given"). One right
side. Solved by cuSOLVER's `cusolverDnD?gesv`.

PyTorch loads cuSOLVER for its linear algebra but has no name for these functions, so they are
called as from C. They take and return fp64; the letter names the format of the factors. Where
refinement does not converge they factor again in fp64, and return a negative number of iterations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from electives.refinement.solvers import backward_error, random_matrix
from research.sweep import command
from trainspeed.timing import quartiles, seconds

SIZES = (2048, 4096, 8192, 16384, 32768)
CONDITIONS = tuple(10.0**power for power in range(1, 9))
CONDITIONED_SIZE = 8192
REPEATS = 3
LETTERS = {"fp64": "D", "fp32": "S", "tf32": "X", "fp16": "H", "bf16": "B"}


def plan() -> Iterator[dict[str, Any]]:
    """List the matrices."""
    for size in SIZES:
        for kind in ("random", "easy"):
            yield {"matrix": kind, "size": size, "condition": None}
    for condition in CONDITIONS:
        yield {"matrix": "given", "size": CONDITIONED_SIZE, "condition": condition}


def measure(matrix: str, size: int, condition: float | None) -> Iterator[dict[str, Any]]:
    """Solve one matrix in each format: seconds with quartiles, corrections, backward error."""
    if condition is None:
        draw = torch.Generator("cuda").manual_seed(0)
        a = torch.randn(size, size, generator=draw, dtype=torch.float64, device="cuda")
        a.diagonal().add_(3 * size**0.5 * (matrix == "easy"))
    else:
        a = random_matrix(condition, size, device=torch.device("cuda"))
    b, columns = a @ torch.ones_like(a[0]), a.t().contiguous().t()
    for precision in LETTERS:
        yield {"precision": precision} | _by_cusolver(columns, b, precision)


def _by_cusolver(columns: torch.Tensor, b: torch.Tensor, precision: str) -> dict[str, Any]:
    times, corrections, error = [], 0, 0.0
    for _ in range(1 + REPEATS):
        work = columns.t().clone().t()  # may be overwritten
        result: list[Any] = []
        times.append(
            seconds(lambda: result.extend(solve(work, b, precision)), b.device)  # noqa: B023
        )
        x, corrections = result
        error = backward_error(columns, x, b)
    return _row(times[1:]) | {"corrections": corrections, "error": error}


def _row(times: list[float]) -> dict[str, float]:
    low, middle, high = quartiles(times)
    return {"seconds": middle, "seconds_q1": low, "seconds_q3": high}


def solve(a: torch.Tensor, b: torch.Tensor, precision: str) -> tuple[torch.Tensor, int]:
    """Solve A·x = b, factored in a precision; return x and the number of corrections.

    A negative number means that the corrections did not converge.

    Args:
        a: fp64 on a GPU, its columns one after the other in memory (`a.t().contiguous().t()`). It
            may be overwritten.
        b: fp64, one vector.
    """
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
    workspace = torch.empty(needed.value, dtype=torch.uint8, device=a.device)
    iterations_pointer = ctypes.byref(iterations)
    _call(name, *system, p(workspace.data_ptr()), needed, iterations_pointer, p(info.data_ptr()))
    if info.item():
        raise RuntimeError(f"{name} found no solution (info {info.item()}): is A singular?")
    return x, iterations.value


@cache
def _library() -> ctypes.CDLL:
    """Load the same file that PyTorch has loaded."""
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
        raise RuntimeError(f"{name} failed with status {status} (cusolverStatus_t)")


if __name__ == "__main__":
    command(__doc__, plan(), measure)
