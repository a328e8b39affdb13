"""How long a solution takes on a GPU, by the format of its factors; measured, and read anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch

from course.runs import once
from course.topics.refinement import cusolver
from course.topics.refinement.factors import factor, matrix_of
from course.topics.refinement.refined import backward_error, refine
from course.topics.roofline.timing import quartiles, seconds

SIZES = (2048, 4096, 8192, 16384, 32768)
CONDITIONS = tuple(10.0**power for power in range(1, 9))
OF_CONDITIONS = 8192  # the size of those
REPEATED = 3
OURS_BLOCK, OURS_MOST = 256, 16384
COMMAND = (
    "python -m benchmarks.side_labs: A of normal random numbers; the same with 3 sqrt(n) added to "
    "its diagonal, so that its condition number is at most 5; and of size 8,192 with condition "
    "numbers; one right side; cuSOLVER's cusolverDnD?gesv, and topics/refinement (ours)"
)
KINDS = ("random", "easy", "given")  # of a matrix; "given": of its condition number


def measure(
    sizes: tuple[int, ...] = SIZES, conditions: tuple[float, ...] = CONDITIONS
) -> dict[str, Any]:
    """Time all of it on this machine's GPU; what a machine's index keeps as "refinement"."""
    rows = []
    for size in sizes:
        matrix = _random(size)
        rows += _of_matrix(matrix, "random", None)
        matrix.diagonal().add_(3 * size**0.5)
        rows += _of_matrix(matrix, "easy", None)
        del matrix
        torch.cuda.empty_cache()
    for condition in conditions:
        matrix = matrix_of(condition, OF_CONDITIONS, device=torch.device("cuda"))
        rows += _of_matrix(matrix, "given", condition)
        del matrix
        torch.cuda.empty_cache()
    return {"command": COMMAND, "rows": rows}


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a solution.

    Columns: by ("cuSOLVER" or "ours"), precision, matrix (of KINDS), size, condition, seconds,
    tflop_per_s (2/3 n³ operations, whatever was done), corrections (negative: given up,
    and solved in fp64), error (backward), speedup (over cuSOLVER in fp64, of the same matrix),
    machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = once.table(machine, "refinement")
    table["condition"] = table["condition"].astype(float)
    table["tflop_per_s"] = 2 / 3 * table["size"] ** 3 / table["seconds"] / 1e12
    of = ["matrix", "size", "condition"]
    whole = table[(table["precision"] == "fp64") & (table["by"] == "cuSOLVER")]
    whole = whole.set_index(of)["seconds"].rename("fp64_s")
    table = table.join(whole, on=of)
    table["speedup"] = table["fp64_s"] / table["seconds"]
    return table.drop(columns="fp64_s")


def _random(size: int) -> torch.Tensor:
    draw = torch.Generator("cuda").manual_seed(0)
    return torch.randn(size, size, generator=draw, dtype=torch.float64, device="cuda")


def _of_matrix(a: torch.Tensor, kind: str, condition: float | None) -> Iterator[dict[str, Any]]:
    x = torch.ones(len(a), dtype=torch.float64, device=a.device)
    b, columns = a @ x, a.t().contiguous().t()
    known = {"matrix": kind, "size": len(a), "condition": condition}
    for precision in cusolver.LETTERS:
        yield {"by": "cuSOLVER", "precision": precision, **known} | _by_cusolver(
            columns, b, precision
        )
    if condition is None and len(a) <= OURS_MOST:
        yield {"by": "ours", "precision": "fp16", **known} | _by_ours(a, b)


def _by_cusolver(columns: torch.Tensor, b: torch.Tensor, precision: str) -> dict[str, Any]:
    times, corrections, error = [], 0, 0.0
    for _ in range(1 + REPEATED):
        work = columns.t().clone().t()  # may be overwritten
        found: list[Any] = []
        times.append(
            seconds(lambda: found.extend(cusolver.solve(work, b, precision)), b.device)  # noqa: B023
        )
        x, corrections = found
        error = backward_error(columns, x, b)
    return _row(times[1:]) | {"corrections": corrections, "error": error}


def _by_ours(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    times, factoring, solved = [], [], None
    for _ in range(1 + REPEATED):
        kept: list[Any] = []
        scale = a.abs().max()
        factoring.append(
            seconds(lambda: kept.append(factor(a / scale, "fp16", OURS_BLOCK)), b.device)  # noqa: B023
        )
        rest = seconds(lambda: kept.append(refine(a / scale, b / scale, kept[0])), b.device)  # noqa: B023
        times.append(factoring[-1] + rest)
        solved = kept[1]
    return _row(times[1:]) | {
        "factor_s": quartiles(factoring[1:])[1],
        "corrections": solved.corrections if solved.done else -solved.corrections,
        "error": solved.residuals[-1],
    }


def _row(times: list[float]) -> dict[str, float]:
    low, middle, high = quartiles(times)
    return {"seconds": middle, "seconds_q1": low, "seconds_q3": high}
