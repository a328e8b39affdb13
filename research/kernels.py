"""The recorded table of kernel: the four kernels next to PyTorch's operators, by size.

    python -m research.kernels OUT.jsonl

triton.testing.do_bench, median, cold cache; bytes are those that must be moved, each input read
and each output written once. Four minutes on an H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from electives.kernel import cuda, gpu_timing, solutions
from electives.kernel.solutions import load_tile, store_tile
from research.sweep import command

SIZES = {
    "add": tuple(2**power for power in range(12, 29, 2)),
    "softmax": (256, 1000, 1024, 4096, 16384),
    "norm_relu": (gpu_timing.DEFAULTS["norm_relu"][0],),
    "matmul": (512, 1024, 2048, 4096, 8192),
}
FORMATS = {"norm_relu": ("bf16",), "matmul": ("bf16", "fp16", "tf32")}
TILES = {2: (128, 256, 64, 8, 3), 4: (128, 128, 32, 8, 3)}  # M, N, K, warps, stages; by bytes


@triton.jit
def matmul_tuned(
    a,
    b,
    c,
    M,
    N,
    K,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Multiply with rectangular tiles, in an order in which neighbours share what is in L2.

    Programs go through GROUP rows of tiles column by column, as in Triton's tutorial on products.
    """
    tall, wide = tl.cdiv(M, TALL), tl.cdiv(N, WIDE)
    place = tl.program_id(0)
    first = place // (GROUP * wide) * GROUP
    height = tl.minimum(tall - first, GROUP)
    rows = (first + place % (GROUP * wide) % height) * TALL + tl.arange(0, TALL)
    columns = place % (GROUP * wide) // height * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((TALL, WIDE), tl.float32)
    for begin in range(0, K, DEEP):
        inner = begin + tl.arange(0, DEEP)
        left, right = load_tile(a, rows, inner, M, K), load_tile(b, inner, columns, K, N)
        total = tl.dot(left, right, total)
    store_tile(c, rows, columns, M, N, total)


def measure(kernel: str, size: int, dtype: str) -> Iterator[dict[str, Any]]:
    """Time a kernel, PyTorch's operator, and further methods."""
    yield from gpu_timing.measure(kernel, getattr(solutions, kernel), size, dtype)
    tensors, reference = gpu_timing.example(kernel, size, dtype)
    out = torch.empty_like(reference())
    for by, call in further_methods(kernel, tensors, out, reference):
        yield gpu_timing.row(kernel, by, size, dtype, tensors, out, call)


def further_methods(
    kernel: str, tensors: dict[str, torch.Tensor], out: torch.Tensor, reference: Callable[[], Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the methods that learners do not write."""
    if kernel == "add" and (compiled := cuda.load_kernels()):
        yield "CUDA C++", lambda: compiled.cuda_add(tensors["x"], tensors["y"], out)
    if kernel == "norm_relu":
        yield "PyTorch, compiled", torch.compile(reference)
    if kernel == "softmax":
        x = tensors["x"]

        def softmax() -> torch.Tensor:
            powers = (x - x.amax(1, keepdim=True)).exp()
            return powers / powers.sum(1, keepdim=True)

        yield "PyTorch, step by step", softmax
    if kernel == "matmul":
        a, b = tensors["a"], tensors["b"]
        tall, wide, deep, warps, stages = TILES[a.itemsize]
        options = {"TALL": tall, "WIDE": wide, "DEEP": deep, "GROUP": 8}
        options |= {"num_warps": warps, "num_stages": stages}
        programs = triton.cdiv(len(a), tall) * triton.cdiv(len(a), wide)
        yield (
            "Triton, tuned",
            lambda: matmul_tuned[(programs,)](a, b, out, *3 * [len(a)], **options),
        )


if __name__ == "__main__":
    plan = [
        {"kernel": kernel, "size": size, "dtype": dtype}
        for kernel, sizes in SIZES.items()
        for size in sizes
        for dtype in FORMATS.get(kernel, ("fp32",))
    ]
    command(__doc__, plan, measure)
