"""How fast the four kernels are on a GPU, beside PyTorch's own; and the recorded table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import torch

from course.runs.recordings import load, recorded_table
from labs.lab_kernel import cuda
from labs.lab_kernel.launch import Kernel, power_of_two

ADDED, COLUMNS, ROWS, PRODUCT = 2**28, 4096, 16384, 4096  # the sizes of a learner's kernel
BLOCKS = tuple(2**power for power in range(5, 15))
IMAGES = (256, 256, 56, 56)  # of ResNet-50's first stage, at batch 256
SIDES = {2: (16, 32, 64, 128), 4: (16, 32, 64)}  # of a first kernel's tiles, as fit; by bytes
TILES = {2: (128, 256, 64, 8, 3), 4: (128, 128, 32, 8, 3)}  # M, N, K, warps, stages; by bytes


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a kernel, a size and a way.

    Columns: kernel, by ("Triton", "PyTorch", …), size, dtype, block, seconds, gb_per_s (of the
    bytes that must be moved), tflop_per_s (of products), share (of the machine's recorded ceiling:
    of its copy's bandwidth, or of its product in that type), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = rates(recorded_table(machine, "kernels"))
    ceilings = load(machine)["ceilings"]
    product = table["dtype"].map(
        {name: each["tflop_per_s"] for name, each in ceilings.items() if isinstance(each, dict)}
    )
    moved = table["gb_per_s"] / (1e3 * ceilings["copy_tb_per_s"])
    table["share"] = moved.where(table["flop"].isna(), table["tflop_per_s"] / product)
    return table


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what was moved and computed in a second."""
    numbers = table[["bytes", "flop"]].astype(float).div(table["seconds"], axis=0)
    return table.assign(gb_per_s=numbers["bytes"] / 1e9, tflop_per_s=numbers["flop"] / 1e12)


def bench(call: Callable[[], Any]) -> float:
    """Seconds of one call on the GPU: the median, with a cold cache."""
    import triton

    return triton.testing.do_bench(call, return_mode="median") / 1e3


def _row(kernel: str, by: str, size: int, dtype: str, **more: Any) -> dict[str, Any]:
    rest = {"block": None, "bytes": None, "flop": None}
    return {"kernel": kernel, "by": by, "size": size, "dtype": dtype, **rest, **more}


def add_rows(kernel: Kernel, sizes: tuple[int, ...] = (ADDED,)) -> Iterator[dict[str, Any]]:
    """Additions of each size, of the largest in each block size."""
    compiled = cuda.loaded()
    for size in sizes:
        x, y = torch.randn(2, size, device="cuda")
        out, moved = torch.empty_like(x), 12 * size
        for block in BLOCKS if size == ADDED else (1024,):
            grid = (-(-size // block),)
            took = bench(lambda: kernel[grid](x, y, out, size, BLOCK=block))  # noqa: B023
            yield _row("add", "Triton", size, "fp32", block=block, bytes=moved, seconds=took)
        assert torch.equal(out, x + y)
        took = bench(lambda: torch.add(x, y, out=out))  # noqa: B023
        yield _row("add", "PyTorch", size, "fp32", bytes=moved, seconds=took)
        if compiled:
            took = bench(lambda: compiled(x, y, out))  # noqa: B023
            yield _row("add", "CUDA C++", size, "fp32", block=256, bytes=moved, seconds=took)


def softmax_rows(kernel: Kernel, columns: tuple[int, ...] = (COLUMNS,)) -> Iterator[dict[str, Any]]:
    """ROWS rows of each length."""

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(1, keepdim=True)).exp()
        return powers / powers.sum(1, keepdim=True)

    for wide in columns:
        x = torch.randn(ROWS, wide, device="cuda")
        out, block, moved = torch.empty_like(x), power_of_two(wide), 8 * x.numel()
        warps = min(max(block // 512, 4), 16)

        def ours() -> None:
            kernel[(ROWS,)](x, out, wide, BLOCK=block, num_warps=warps)  # noqa: B023

        ways = {
            "Triton": ours,
            "PyTorch": lambda: x.softmax(1),  # noqa: B023
            "PyTorch, step by step": lambda: by_hand(x),  # noqa: B023
        }
        for by, call in ways.items():
            yield _row("softmax", by, wide, "fp32", bytes=moved, seconds=bench(call))
        assert torch.allclose(out, x.softmax(1), atol=1e-6)


def norm_relu_rows(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """BatchNorm in evaluation and ReLU, on IMAGES."""
    norm = torch.nn.BatchNorm2d(IMAGES[1]).cuda().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(IMAGES, device="cuda").bfloat16().to(memory_format=torch.channels_last)
    scale, shift = folded(norm)
    out, size, moved = torch.empty_like(x), x.numel(), 4 * x.numel()
    channels, rows = IMAGES[1], x.numel() // IMAGES[1]

    def eager() -> torch.Tensor:
        return torch.relu(norm(x))

    def ours() -> None:
        grid, tile = (-(-rows // 16),), {"ROWS": 16, "BLOCK": channels}
        kernel[grid](x, scale, shift, out, rows, channels, **tile)

    with torch.inference_mode():
        ways = {"Triton": ours, "PyTorch": eager, "PyTorch, compiled": torch.compile(eager)}
        for by, call in ways.items():
            yield _row("norm_relu", by, size, "bf16", bytes=moved, seconds=bench(call))
        assert torch.allclose(out, eager(), rtol=0.02, atol=0.02)


def matmul_rows(kernel: Kernel, sizes: tuple[int, ...] = (PRODUCT,)) -> Iterator[dict[str, Any]]:
    """Products of square matrices of each size in bf16, fp16 and TF32."""
    for size in sizes:
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("tf32", None)):
            a, b = torch.randn(2, size, size, device="cuda", dtype=dtype)
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            for by, block, call in _ways_of_product(kernel, a, b):
                more = {"block": block, "flop": 2 * size**3, "seconds": bench(call)}
                yield _row("matmul", by, size, name, **more)
    torch.backends.cuda.matmul.allow_tf32 = False


def _ways_of_product(
    kernel: Kernel, a: torch.Tensor, b: torch.Tensor
) -> Iterator[tuple[str, int | None, Callable[[], Any]]]:
    """Each way to multiply two square matrices, with its tile, tried once whether it is right."""
    from labs.lab_kernel import solutions as given

    size, right, out = len(a), a @ b, torch.empty_like(a)
    sizes = (size,) * 3
    for side in SIDES[a.itemsize]:
        grid = (-(-size // side),) * 2
        yield "Triton", side, lambda: kernel[grid](a, b, out, *sizes, SIDE=side)  # noqa: B023
        assert (out - right).abs().max() < 0.02 * right.abs().max()
    tall, wide, deep, warps, stages = TILES[a.itemsize]
    tiles = {"TALL": tall, "WIDE": wide, "DEEP": deep, "GROUP": 8}
    how = tiles | {"num_warps": warps, "num_stages": stages}
    programs = (-(-size // tall) * -(-size // wide),)
    out.zero_()
    yield "Triton, tuned", None, lambda: given.matmul_tuned[programs](a, b, out, *sizes, **how)
    assert (out - right).abs().max() < 0.02 * right.abs().max()
    yield "PyTorch", None, lambda: a @ b


def folded(norm: torch.nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """A BatchNorm in evaluation as a scale and a shift for each channel."""
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale.detach(), (norm.bias - norm.running_mean * scale).detach()


# By name a kernel's measurement at one large size, beside PyTorch's own.
MEASUREMENTS: dict[str, Callable[[Kernel], Iterable[dict[str, Any]]]] = {
    "add": add_rows,
    "softmax": softmax_rows,
    "norm_relu": norm_relu_rows,
    "matmul": matmul_rows,
}
