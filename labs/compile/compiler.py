"""Experiments with torch.compile: graphs, kernels, graph breaks, recompilations, cache.

All of them compile the forward pass. Each begins without compiled functions in memory.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import nn

from course._compat import compiler_counters
from course.analysis import fresh_compiler
from labs._compat import clear_caches, explain, run_and_get_code

CALLS = 30  # that `median_ms` measures
BACKEND = "inductor"  # of `time_versions`
C_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(.*?r'''\n(.*?)'''\)", re.M | re.S)
TRITON_KERNEL = re.compile(r"^def (triton_\w+)\(.*?(?=^''')", re.M | re.S)


class BlockEnd(nn.Module):
    """The end of a residual block: BatchNorm, addition of the shortcut, ReLU.

    Images and shortcut of shape (N, channels, H, W).
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(images) + shortcut)


def capture_graph(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """Return the operators in the compiler's graphs.

    Columns: graph (from 1), operator, output (its shape).
    """
    with fresh_compiler(), torch.no_grad():
        graphs = explain(function)(*inputs).graphs
    rows = []
    for number, module in enumerate(graphs, 1):
        for node in module.graph.nodes:
            if node.op.startswith("call"):
                output = node.meta.get("example_value")
                shape = tuple(output.shape) if isinstance(output, torch.Tensor) else ()
                operator = getattr(node.target, "__name__", str(node.target))
                rows.append((number, operator, " × ".join(map(str, shape))))
    return pd.DataFrame(rows, columns=["graph", "operator", "output"])


def find_breaks(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """Return the lines at which the compiler's graph breaks; n breaks make n + 1 graphs.

    Columns: line (of the source file), code, reason.
    """
    with fresh_compiler(), torch.no_grad():
        reasons = explain(function)(*inputs).break_reasons
    rows = []
    for reason in reasons:
        place = reason.user_stack[-1]
        rows.append((place.lineno, (place.line or "").strip(), reason.reason.splitlines()[0]))
    return pd.DataFrame(rows, columns=["line", "code", "reason"])


@dataclass(frozen=True)
class Kernel:
    """A loop over memory that the compiler wrote; `source` is C++, or Triton for a GPU."""

    name: str
    source: str

    @property
    def arithmetic(self) -> list[str]:
        """The lines inside the loop, which read, compute and write."""
        lines = [line.strip() for line in self.source.splitlines()]
        return [line for line in lines if re.match(r"(auto )?tmp\d+( =|\.store)|tl\.store", line)]

    @property
    def memory_accesses(self) -> list[str]:
        """The lines that read from memory or write to it."""
        return [line for line in self.arithmetic if re.search(r"\b(in|out)_ptr\d", line)]


def kernels(function: Callable, *inputs: torch.Tensor) -> list[Kernel]:
    """Return the kernels that the compiler writes for these inputs."""
    with fresh_compiler(), torch.no_grad():
        _, sources = run_and_get_code(torch.compile(function), *inputs)
    text = "\n".join(sources)
    in_c = [Kernel(name, source) for name, source in C_KERNEL.findall(text)]
    return in_c + [Kernel(match[1], match[0]) for match in TRITON_KERNEL.finditer(text)]


def compile_shapes(
    function: Callable, inputs: Iterable[torch.Tensor], *, dynamic: bool | None = None
) -> pd.DataFrame:
    """Call a compiled function with each input.

    Columns: call (from 1), shape, compiled (graphs compiled in this call), seconds. The kernels
    are PyTorch's own (backend "eager"), so that only Dynamo's time counts.

    Args:
        dynamic: of torch.compile. None: a size that changes becomes a symbol. False: each size has
            its own graph. True: symbols from the beginning.
    """
    rows = []
    with fresh_compiler(), torch.no_grad():
        compiled = torch.compile(function, backend="eager", dynamic=dynamic)
        for number, tensor in enumerate(inputs, 1):
            before = _graph_count()
            seconds = _timed(compiled, tensor)
            row = {"call": number, "shape": " × ".join(map(str, tensor.shape))}
            rows.append(row | {"compiled": _graph_count() - before, "seconds": seconds})
    return pd.DataFrame(rows)


def time_versions(versions: Mapping[str, Callable], *inputs: torch.Tensor) -> pd.DataFrame:
    """Compile and time each version of a function.

    Columns: version, graphs, ms (per call, after compiling).
    """
    rows = []
    for name, function in versions.items():
        with fresh_compiler(), torch.no_grad():
            before = _graph_count()
            ms = median_ms(torch.compile(function, backend=BACKEND), *inputs)
            rows.append({"version": name, "graphs": _graph_count() - before, "ms": ms})
    return pd.DataFrame(rows)


def break_even_steps(compile_s: float, step_s: float, compiled_step_s: float) -> float:
    """Return the number of steps after which compiling has saved its own time, or inf."""
    saved = step_s - compiled_step_s
    return compile_s / saved if saved > 0 else float("inf")


def measure_cache(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
    """Time a first call with an empty cache on disk, a copy of the filled one, and an empty one.

    Columns: cache, seconds, hits (graphs found in the cache).
    """
    with tempfile.TemporaryDirectory() as folder:
        _first_call(function, inputs, f"{folder}/warm-up")  # loads the compiler itself
        rows = [{"cache": "empty"} | _first_call(function, inputs, f"{folder}/original")]
        shutil.copytree(f"{folder}/original", f"{folder}/copy")
        rows.append({"cache": "copied"} | _first_call(function, inputs, f"{folder}/copy"))
        rows.append({"cache": "empty again"} | _first_call(function, inputs, f"{folder}/empty"))
    return pd.DataFrame(rows)


def _first_call(function: Callable, inputs: tuple, folder: str) -> dict[str, float]:
    """Compile and call a function with the compiler's cache in this folder."""
    counters = compiler_counters()["inductor"]
    with mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}):
        clear_caches()
        try:
            with fresh_compiler(), torch.no_grad():
                before = counters["fxgraph_cache_hit"]
                seconds = _timed(torch.compile(function), *inputs)
                return {"seconds": seconds, "hits": counters["fxgraph_cache_hit"] - before}
        finally:
            clear_caches()


def _graph_count() -> int:
    """Return the number of graphs that Dynamo has compiled in this process."""
    return compiler_counters()["stats"]["unique_graphs"]


def median_ms(function: Callable, *inputs: torch.Tensor) -> float:
    """Return the median milliseconds of CALLS calls, after three for warm-up."""
    return 1e3 * median([_timed(function, *inputs) for _ in range(CALLS + 3)][3:])


def _timed(function: Callable, *inputs: Any) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    function(*inputs)
    return time.perf_counter() - begin
