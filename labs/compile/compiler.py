"""Experiments with torch.compile: kernels, graph breaks, versions of a function.

All of them compile the forward pass. Each begins without compiled functions in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import nn

from course._compat import compiler_counters
from course.analysis import fresh_compiler
from labs._compat import explain, run_and_get_code
from trainspeed.timing import median_ms

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


def breaks(function: Callable, *inputs: torch.Tensor) -> pd.DataFrame:
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


def time_versions(versions: Mapping[str, Callable], *inputs: torch.Tensor) -> pd.DataFrame:
    """Compile and time each version of a function.

    Columns: version, graphs, ms (per call, after compiling).
    """
    rows = []
    for name, function in versions.items():
        with fresh_compiler(), torch.no_grad():
            before = _graph_count()
            compiled = partial(torch.compile(function, backend=BACKEND), *inputs)
            for _ in range(10):  # more than the versions of a function that Dynamo compiles
                compiled()
            ms = median_ms(compiled)
            rows.append({"version": name, "graphs": _graph_count() - before, "ms": ms})
    return pd.DataFrame(rows)


def _graph_count() -> int:
    """Return the number of graphs that Dynamo has compiled in this process."""
    return compiler_counters()["stats"]["unique_graphs"]
