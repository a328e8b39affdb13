"""Times of kernels on a GPU next to PyTorch's operators: recorded ones, and a learner's own.

A learner's kernel is compiled in a separate process, because the notebook's interprets.
`python -m electives.kernel.gpu_timing FILE NAME` prints the measured rows as JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from course.runs import recorded_table, recordings
from course.training import Recorder, set_tf32

# By kernel: the size to time, its numbers' format, and the blocks to try.
DEFAULTS: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "add": (2**28, "fp32", tuple(2**power for power in range(5, 15))),
    "softmax": (4096, "fp32", ()),
    "norm_relu": (256 * 56**2, "bf16", (16,)),
    "matmul": (4096, "bf16", (16, 32, 64, 128)),
}
SOFTMAX_ROWS, CHANNELS = 16384, 256
DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
IMPORTS = """import triton
import triton.language as tl
from electives.kernel.solutions import load_tile, store_tile
"""


def load_measurements(machine: str) -> pd.DataFrame:
    """Load what research/kernels.py measured on a machine: a row per kernel, size and method.

    Columns: kernel, by ("Triton", "PyTorch", …), size, dtype, block, seconds, gb_per_s (of the
    bytes that must be moved), tflop_per_s (of products), share (of the machine's recorded limit:
    its copy bandwidth, or its matrix products in that format), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = _add_rates(recorded_table(machine, "kernels"))
    limits = recordings.load(machine)["ceilings"]
    rates = {name: limit["tflop_per_s"] for name, limit in limits.items() if type(limit) is dict}
    bandwidth_share = table["gb_per_s"] / (1e3 * limits["copy_tb_per_s"])
    product_share = table["tflop_per_s"] / table["dtype"].map(rates)
    return table.assign(share=bandwidth_share.where(table["flop"].isna(), product_share))


def _add_rates(table: pd.DataFrame) -> pd.DataFrame:
    rates = table[["bytes", "flop"]].astype(float).div(table["seconds"], axis=0)
    return table.assign(gb_per_s=rates["bytes"] / 1e9, tflop_per_s=rates["flop"] / 1e12)


def time_on_gpu(kernel: Any) -> pd.DataFrame | None:
    """Time one of the lab's kernels and PyTorch's operator on this machine's GPU; None without one.

    Columns: kernel, by, size, dtype, block, seconds, gb_per_s, tflop_per_s.

    Raises:
        RuntimeError: it could not be compiled, or failed; the message is the end of the log.
    """
    if not torch.cuda.is_available():
        return None
    function = kernel.fn
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.py")
        file.write_text(IMPORTS + inspect.getsource(function))
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        command = [sys.executable, "-P", "-m", __name__, str(file), function.__name__]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError("\n".join(process.stderr.splitlines()[-8:]))
    return _add_rates(pd.DataFrame(json.loads(process.stdout.splitlines()[-1])))


def leaderboard(kernel: Any) -> pd.DataFrame:
    """Rank products of bf16 matrices: recorded ones, and a kernel on this machine's GPU, if any.

    As in the race, only correct ones count: `time_on_gpu` raises RuntimeError for others.

    Columns: product, ms, tflop_per_s, of_cublas (its speed, relative to cuBLAS's there), machine.
    """
    size, dtype, _ = DEFAULTS["matmul"]
    rows = load_measurements("nvidia-h100").query("size == @size and dtype == @dtype")
    if (timed := time_on_gpu(kernel)) is not None:
        machine = Recorder(None).describe(torch.device("cuda"))["machine"]
        timed = timed.replace({"by": {"Triton": "yours"}})
        rows = pd.concat([rows, timed.assign(machine=f"{machine}, here")])
    rows = rows[rows["kernel"] == "matmul"].reset_index(drop=True)
    tiles = rows["block"].map(", tiles of {:.0f}".format, na_action="ignore").fillna("")
    cublas = rows[rows["by"] == "PyTorch"].set_index("machine")["seconds"]
    board = pd.DataFrame(
        {
            "product": rows["by"].replace("PyTorch", "cuBLAS") + tiles,
            "ms": 1e3 * rows["seconds"],
            "tflop_per_s": rows["tflop_per_s"],
            "of_cublas": rows["machine"].map(cublas) / rows["seconds"],
            "machine": rows["machine"],
        }
    ).sort_values("of_cublas", ascending=False)
    return board.round(2).set_axis(pd.Index(range(1, len(board) + 1), name="place"))


def measure(name: str, kernel: Any, size: int, dtype: str) -> Iterator[dict[str, Any]]:
    """Time a kernel with each block size, and PyTorch's operator.

    Raises:
        AssertionError: the kernel's results differ from PyTorch's.
    """
    from electives.kernel import launch

    set_tf32(dtype == "tf32")
    tensors, reference = example(name, size, dtype)
    expected = reference()
    out = torch.empty_like(expected)
    yield row(name, "PyTorch", size, dtype, tensors, out, reference)
    for block in DEFAULTS[name][2] or (None,):
        options = {"block": block} if block else {}
        if name == "softmax":
            options["num_warps"] = min(max(size // 512, 4), 16)
        elif name == "matmul" and block * out.itemsize > 256:
            continue  # tiles of 128 × 128 numbers in fp32 do not fit into registers

        def run(options: dict[str, int] = options) -> None:
            getattr(launch, name)(kernel, **tensors, out=out, **options)

        yield row(name, "Triton", size, dtype, tensors, out, run) | {"block": block}
        assert (out - expected).abs().max() < 0.02 * expected.abs().max(), "wrong results"


def example(
    name: str, size: int, dtype: str
) -> tuple[dict[str, torch.Tensor], Callable[[], torch.Tensor]]:
    """Create a kernel's inputs on the GPU, and PyTorch's operator on them as a call."""
    kind = {"device": "cuda", "dtype": DTYPES[dtype]}
    if name == "add":
        x, y = torch.randn(2, size, **kind)
        return {"x": x, "y": y}, lambda: torch.add(x, y)
    if name == "softmax":
        x = torch.randn(SOFTMAX_ROWS, size, **kind)
        return {"x": x}, lambda: x.softmax(1)
    if name == "matmul":
        a, b = torch.randn(2, size, size, **kind)
        return {"a": a, "b": b}, lambda: a @ b
    x, norm = torch.randn(size, CHANNELS, **kind), torch.nn.BatchNorm2d(CHANNELS).cuda().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    shift = (norm.bias - norm.running_mean * scale).detach()
    images = x.view(-1, 56, 56, CHANNELS).permute(0, 3, 1, 2)  # channels_last

    @torch.inference_mode()
    def norm_relu() -> torch.Tensor:
        return torch.relu(norm(images)).permute(0, 2, 3, 1).reshape(x.shape)

    return {"x": x, "scale": scale, "shift": shift}, norm_relu


def row(
    name: str,
    by: str,
    size: int,
    dtype: str,
    tensors: dict[str, torch.Tensor],
    out: torch.Tensor,
    call: Callable[[], Any],
) -> dict[str, Any]:
    """Time a call with a cold cache; return the median and the bytes or FLOPs of the operation."""
    from triton.testing import do_bench

    moved = sum(tensor.nbytes for tensor in (*tensors.values(), out))
    is_product = name == "matmul"
    return {
        "kernel": name,
        "by": by,
        "size": size,
        "dtype": dtype,
        "block": None,
        "bytes": None if is_product else moved,
        "flop": 2 * size**3 if is_product else None,
        "seconds": do_bench(call, return_mode="median") / 1e3,
    }


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name = sys.argv[2]
    size, dtype, _ = DEFAULTS[name]
    print(json.dumps([*measure(name, getattr(module, name), size, dtype)]))
