"""How fast the four kernels are on a GPU, beside PyTorch's own: measured there, read anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch

from course.runs import once
from course.runs.recordings import load

COMMAND = (
    "python -m benchmarks.side_labs: triton.testing.do_bench, median; bytes are those that must be "
    "moved, each input read and each output written once"
)
ADDED = tuple(2**power for power in range(12, 29, 2))
BLOCKS = tuple(2**power for power in range(5, 15))
COLUMNS = (256, 1000, 1024, 4096, 16384)
ROWS = 16384
IMAGES = (256, 256, 56, 56)  # of ResNet-50's first stage, at batch 256
PRODUCTS = (512, 1024, 2048, 4096, 8192)
TILES = {2: (128, 256, 64, 8, 3), 4: (128, 128, 32, 8, 3)}  # M, N, K, warps, stages; by bytes


def measure() -> dict[str, Any]:
    """Time all of it on this machine's GPU; what a machine's index keeps as "kernels"."""
    rows = [*_added(), *_softmax(), *_norm_relu(), *_products()]
    return {"command": COMMAND, "rows": rows}


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a kernel, a size and a way.

    Columns: kernel, by ("Triton", "PyTorch", …), size, dtype, block, seconds, gb_per_s (of the
    bytes that must be moved), tflop_per_s (of products), share (of the machine's recorded ceiling:
    of its copy's bandwidth, or of its product in that type), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = once.table(machine, "kernels")
    table["gb_per_s"] = table["bytes"] / table["seconds"] / 1e9
    table["tflop_per_s"] = table["flop"] / table["seconds"] / 1e12
    ceilings = load(machine)["ceilings"]
    product = table["dtype"].map(
        {name: each["tflop_per_s"] for name, each in ceilings.items() if isinstance(each, dict)}
    )
    moved = table["gb_per_s"] / (1e3 * ceilings["copy_tb_per_s"])
    table["share"] = moved.where(table["flop"].isna(), table["tflop_per_s"] / product)
    return table


def bench(call: Callable[[], Any]) -> float:
    """Seconds of one call on the GPU: the median, with a cold cache."""
    import triton

    return triton.testing.do_bench(call, return_mode="median") / 1e3


def _row(kernel: str, by: str, size: int, dtype: str, **more: Any) -> dict[str, Any]:
    rest = {"block": None, "bytes": None, "flop": None}
    return {"kernel": kernel, "by": by, "size": size, "dtype": dtype, **rest, **more}


def _added() -> Iterator[dict[str, Any]]:
    from course.topics.kernels import cuda, given

    compiled = cuda.loaded()
    for size in ADDED:
        x, y = torch.randn(2, size, device="cuda")
        out, moved = torch.empty_like(x), 12 * size
        for block in BLOCKS if size == ADDED[-1] else (1024,):
            grid = (-(-size // block),)
            took = bench(lambda: given.add[grid](x, y, out, size, BLOCK=block))  # noqa: B023
            yield _row("add", "Triton", size, "fp32", block=block, bytes=moved, seconds=took)
        assert torch.equal(out, x + y)
        took = bench(lambda: torch.add(x, y, out=out))  # noqa: B023
        yield _row("add", "PyTorch", size, "fp32", bytes=moved, seconds=took)
        if compiled:
            took = bench(lambda: compiled(x, y, out))  # noqa: B023
            yield _row("add", "CUDA C++", size, "fp32", block=256, bytes=moved, seconds=took)


def _softmax() -> Iterator[dict[str, Any]]:
    from course.topics.kernels import given

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(1, keepdim=True)).exp()
        return powers / powers.sum(1, keepdim=True)

    for columns in COLUMNS:
        x = torch.randn(ROWS, columns, device="cuda")
        out, block, moved = torch.empty_like(x), _power_of_two(columns), 8 * x.numel()
        warps = min(max(block // 512, 4), 16)

        def ours() -> None:
            given.softmax[(ROWS,)](x, out, columns, BLOCK=block, num_warps=warps)  # noqa: B023

        ways = {
            "Triton": ours,
            "PyTorch": lambda: x.softmax(1),  # noqa: B023
            "PyTorch, step by step": lambda: by_hand(x),  # noqa: B023
        }
        for by, call in ways.items():
            yield _row("softmax", by, columns, "fp32", bytes=moved, seconds=bench(call))
        assert torch.allclose(out, x.softmax(1), atol=1e-6)


def _norm_relu() -> Iterator[dict[str, Any]]:
    from course.topics.kernels import given

    norm = torch.nn.BatchNorm2d(IMAGES[1]).cuda().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(IMAGES, device="cuda").bfloat16().to(memory_format=torch.channels_last)
    scale, shift = given.folded(norm)
    out, size, moved = torch.empty_like(x), x.numel(), 4 * x.numel()

    def eager() -> torch.Tensor:
        return torch.relu(norm(x))

    def ours() -> None:
        given.norm_relu[(-(-size // 1024),)](x, scale, shift, out, size, IMAGES[1], BLOCK=1024)

    with torch.inference_mode():
        ways = {"Triton": ours, "PyTorch": eager, "PyTorch, compiled": torch.compile(eager)}
        for by, call in ways.items():
            yield _row("norm_relu", by, size, "bf16", bytes=moved, seconds=bench(call))
        assert torch.allclose(out, eager(), rtol=0.02, atol=0.02)


def _products() -> Iterator[dict[str, Any]]:
    from course.topics.kernels import given

    for size in PRODUCTS:
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("tf32", None)):
            a, b = torch.randn(2, size, size, device="cuda", dtype=dtype)
            out = torch.empty(size, size, device="cuda", dtype=dtype)
            m, n, k, warps, stages = TILES[a.itemsize]
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            tiles = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
            how = tiles | {"num_warps": warps, "num_stages": stages}
            grid = (-(-size // m), -(-size // n))
            sizes = (size,) * 3
            ways = {
                "Triton": lambda: given.matmul[grid](a, b, out, *sizes, **how),  # noqa: B023
                "PyTorch": lambda: a @ b,  # noqa: B023
            }
            for by, call in ways.items():
                took = bench(call)
                yield _row("matmul", by, size, name, flop=2 * size**3, seconds=took)
            error = (out - a @ b).float().abs().max() / (a @ b).float().abs().max()
            assert error < 0.02, error
    torch.backends.cuda.matmul.allow_tf32 = False


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
