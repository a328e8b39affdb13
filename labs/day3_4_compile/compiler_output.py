"""What torch.compile made of a function: its graphs, its kernels, and why it made several.

All of it is of the forward pass. Each function here begins with an empty memory of what was
compiled before, and PyTorch's cache of kernels on disk is left alone.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import nn

C_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(.*?r'''\n(.*?)'''\)", re.M | re.S)
TRITON_KERNEL = re.compile(r"^def (triton_\w+)\(.*?(?=^''')", re.M | re.S)
QUIET = ("torch._dynamo", "torch.utils.cpp_extension")  # loggers: the other one misses a GPU
NO_COMPILER = (
    "torch.compile writes C++ for a processor, and found no compiler here: install one "
    "(Debian, Ubuntu: apt install g++; macOS: xcode-select --install; Slurm: module load gcc)"
)


class Tail(nn.Module):
    """The end of a residual block: BatchNorm, the shortcut added to it, ReLU.

    Images and shortcut of shape (N, channels, H, W).
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        """What the block hands on."""
        return torch.relu(self.norm(images) + shortcut)


@dataclass(frozen=True)
class Kernel:
    """A loop over memory that the compiler wrote; `source` in C++, or for a GPU in Triton."""

    name: str
    source: str

    @property
    def arithmetic(self) -> list[str]:
        """The lines that read, compute and write; what surrounds them is the loop."""
        lines = [line.strip() for line in self.source.splitlines()]
        return [line for line in lines if re.match(r"(auto )?tmp\d+( =|\.store)|tl\.store", line)]

    @property
    def moves(self) -> list[str]:
        """Of these lines the ones that read from memory or write to it."""
        return [line for line in self.arithmetic if re.search(r"\b(in|out)_ptr\d", line)]


def graph(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """The operators that the compiler saw, in order, of all its graphs.

    Columns: graph (from 1 on), operator, output (its shape, or "" where it has none).
    """
    rows: list[dict[str, Any]] = []

    def collect(module: torch.fx.GraphModule, _: list) -> Callable:
        number = max([row["graph"] for row in rows], default=0) + 1
        for node in module.graph.nodes:
            if node.op.startswith("call"):
                made = node.meta.get("example_value")
                shape = tuple(made.shape) if isinstance(made, torch.Tensor) else ()
                rows.append(
                    {
                        "graph": number,
                        "operator": getattr(node.target, "__name__", str(node.target)),
                        "output": " × ".join(map(str, shape)),
                    }
                )
        return module.forward

    with anew(), torch.no_grad():
        torch.compile(function, backend=collect)(*inputs)
    return pd.DataFrame(rows, columns=["graph", "operator", "output"])


def kernels(function: Callable, *inputs: torch.Tensor) -> list[Kernel]:
    """What the compiler wrote for these inputs, kernel by kernel.

    Raises:
        RuntimeError: this machine has no C++ compiler; the message says where to get one.
    """
    from torch._inductor.utils import run_and_get_code

    with anew(), torch.no_grad(), told():
        _, written = run_and_get_code(torch.compile(function), *inputs)
    found = []
    for text in written:
        found += [Kernel(name, source) for name, source in C_KERNEL.findall(text)]
        found += [Kernel(match[1], match[0]) for match in TRITON_KERNEL.finditer(text)]
    return found


def breaks(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """Where the compiler had to give a function back to Python: each begins a new graph.

    Columns: line (of the source file), code, reason. Of n rows n + 1 graphs come.
    """
    with anew(), torch.no_grad():
        told = torch._dynamo.explain(function)(*inputs)
    rows = []
    for each in told.break_reasons:
        where = each.user_stack[-1]
        reason = each.reason.splitlines()[0]
        rows.append({"line": where.lineno, "code": (where.line or "").strip(), "reason": reason})
    return pd.DataFrame(rows, columns=["line", "code", "reason"])


def compilations(
    function: Callable, inputs: Iterable[torch.Tensor], *, dynamic: bool | None = None
) -> pd.DataFrame:
    """One row a call with the next input: was it compiled for, and how long did the call take?

    Columns: call (from 1 on), shape, compiled (graphs made in this call), seconds. The kernels
    are PyTorch's own (backend "eager"), so that only the compiler's look at the function counts.

    Args:
        dynamic: as torch.compile has it. None: a size that changes becomes a symbol at its second
            value. False: each size has a graph of its own. True: symbols from the beginning.
    """
    made = 0

    def count(module: torch.fx.GraphModule, _: list) -> Callable:
        nonlocal made
        made += 1
        return module.forward

    rows = []
    with anew(), torch.no_grad():
        compiled = torch.compile(function, backend=count, dynamic=dynamic)
        for number, each in enumerate(inputs, 1):
            before, start = made, time.perf_counter()
            compiled(each)
            rows.append(
                {
                    "call": number,
                    "shape": " × ".join(map(str, each.shape)),
                    "compiled": made - before,
                    "seconds": time.perf_counter() - start,
                }
            )
    return pd.DataFrame(rows)


CALLS = 30
BACKEND = "inductor"  # what turns graphs into kernels where their time is told


def mended(versions: Mapping[str, Callable], *inputs: torch.Tensor) -> pd.DataFrame:
    """One row a version of a function: into how many graphs it falls, and how long it takes.

    Columns: version, graphs, ms (the median of CALLS calls, all compiled by then). What a version
    prints is not shown.

    Raises:
        RuntimeError: this machine has no C++ compiler; the message says where to get one.
    """
    rows = []
    for name, function in versions.items():
        with anew(), torch.no_grad(), told():
            stats = torch._dynamo.utils.counters["stats"]
            before = stats["unique_graphs"]
            compiled = torch.compile(function, backend=BACKEND)
            ms = middle_ms(compiled, *inputs)
            graphs = stats["unique_graphs"] - before
        rows.append({"version": name, "graphs": graphs, "ms": ms})
    return pd.DataFrame(rows)


def middle_ms(function: Callable, *inputs: torch.Tensor) -> float:
    """Milliseconds of the middle one of CALLS calls, after three that are not counted."""
    found = []
    for _ in range(CALLS + 3):
        begin = time.perf_counter()
        function(*inputs)
        found.append(time.perf_counter() - begin)
    return 1e3 * sorted(found[3:])[CALLS // 2]


def paid_after(compile_s: float, step_s: float, compiled_step_s: float) -> float:
    """After how many steps compiling has saved as much time as it took; inf where it never does."""
    saved = step_s - compiled_step_s
    return compile_s / saved if saved > 0 else float("inf")


@contextmanager
def anew() -> Iterator[None]:
    """With nothing compiled before; without Dynamo's warnings, which results tell, and prints."""
    logs = [logging.getLogger(name) for name in QUIET]
    levels = [log.level for log in logs]
    torch._dynamo.reset()
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)
        torch._dynamo.reset()


@contextmanager
def told() -> Iterator[None]:
    """Where a C++ compiler is missing, the error says where to get one."""
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        yield
    except Exception as error:
        causes = [error, error.__cause__, error.__context__, getattr(error, "inner_exception", 0)]
        if any(isinstance(each, InvalidCxxCompiler) for each in causes):
            raise RuntimeError(NO_COMPILER) from error
        raise
