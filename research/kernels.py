"""The recorded table of lab_kernel: the four kernels beside PyTorch's own, by size.

    python -m research.kernels OUT.jsonl

triton.testing.do_bench, median, cold cache; bytes are those that must be moved, each input read
and each output written once. Four minutes on an H100.
"""

from __future__ import annotations

from typing import Any

from labs.lab_kernel import measurements as measured
from labs.lab_kernel import solutions as given
from research.sweep import command

SIZES: dict[str, dict[str, Any]] = {
    "add": {"sizes": tuple(2**power for power in range(12, 29, 2))},
    "softmax": {"columns": (256, 1000, 1024, 4096, 16384)},
    "norm_relu": {},
    "matmul": {"sizes": (512, 1024, 2048, 4096, 8192)},
}


def measure(kernel: str) -> list[dict[str, Any]]:
    """The rows of a kernel."""
    return [*measured.MEASUREMENTS[kernel](getattr(given, kernel), **SIZES[kernel])]


if __name__ == "__main__":
    command(__doc__, [{"kernel": name} for name in SIZES], measure)
