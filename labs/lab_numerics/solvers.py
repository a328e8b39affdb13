"""Iterative refinement: a rough solution, corrected from residuals that are computed exactly.

Wilkinson 1963; in three precisions, and with GMRES for the corrections: Carson and Higham,
"Accelerating the solution of linear systems by iterative refinement in three precisions", SIAM J.
Sci. Comput. 40(2), 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from labs.lab_numerics.factors import ROUNDOFF, Factors, factor, matrix_of

MOST = 30  # corrections, after which LAPACK's dsgesv gives up, too
# How far GMRES solves for one correction; its iterations at most for one, and for all.
INNER, INNER_MOST, INNER_ALL = 1e-4, 100, 300
Solve = Callable[[torch.Tensor], torch.Tensor]
Correct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Solve], torch.Tensor]


@dataclass(frozen=True)
class Solved:
    """A solution, and how it got there: errors before the first correction, and after each."""

    x: torch.Tensor
    residuals: tuple[float, ...]
    inner: int  # GMRES's iterations in all; 0: plain refinement
    done: bool  # as good as fp64 alone would leave it

    @property
    def corrections(self) -> int:
        """How many there were."""
        return len(self.residuals) - 1


def backward_error(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """The residual's largest number beside what it was computed from.

    ‖b − A·x‖ / (‖A‖·‖x‖ + ‖b‖), each the largest of its rows: so much must A and b be changed,
    relatively, for x to be right (Rigal and Gaches 1967).
    """
    norm = a.abs().sum(dim=1).max() * x.abs().max() + b.abs().max()
    return float((b - a @ x).abs().max() / norm)


def good_enough(size: int) -> float:
    """The backward error at which LAPACK's dsgesv stops refining: √n times fp64's roundoff."""
    return math.sqrt(size) * ROUNDOFF["fp64"]


def correct(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, solve: Solve) -> torch.Tensor:
    """One correction: the residual in fp64, what it asks of x by rough factors, and both added."""
    return x + solve(b - a @ x)


def refine(
    a: torch.Tensor,
    b: torch.Tensor,
    factors: Factors,
    correct: Correct = correct,
    most: int = MOST,
) -> Solved:
    """Solve by factors that are rough, and correct until fp64 itself could do no better."""
    x = factors.solve(b)
    found = [backward_error(a, x, b)]
    while good_enough(len(b)) < found[-1] < math.inf and len(found) <= most:
        x = correct(a, b, x, factors.solve)
        found.append(backward_error(a, x, b))
    return Solved(x, tuple(found), 0, found[-1] <= good_enough(len(b)))


def refine_by_gmres(a: torch.Tensor, b: torch.Tensor, factors: Factors) -> Solved:
    """The same, but each correction is GMRES's, and the rough factors are its preconditioner."""
    x, inner = factors.solve(b), 0
    found = [backward_error(a, x, b)]
    while good_enough(len(b)) < found[-1] < math.inf and inner < INNER_ALL:
        correction, iterations = _gmres(a, b - a @ x, factors.solve)
        x, inner = x + correction, inner + iterations
        found.append(backward_error(a, x, b))
    return Solved(x, tuple(found), inner, found[-1] <= good_enough(len(b)))


def _gmres(a: torch.Tensor, residual: torch.Tensor, solve: Solve) -> tuple[torch.Tensor, int]:
    """d of (L·U)⁻¹·A·d = (L·U)⁻¹·residual, and how many iterations it took."""
    from scipy.sparse.linalg import LinearOperator, gmres

    def preconditioned(vector: np.ndarray) -> np.ndarray:
        return solve(a @ torch.from_numpy(vector.ravel())).numpy()

    steps: list[float] = []
    found, _ = gmres(
        LinearOperator(tuple(a.shape), preconditioned, dtype=np.float64),
        solve(residual).numpy(),
        rtol=INNER,
        restart=INNER_MOST,
        maxiter=1,
        callback=steps.append,
        callback_type="pr_norm",
    )
    return torch.from_numpy(found), len(steps)


def convergence(
    precision: str,
    conditions: Iterable[float],
    size: int = 200,
    correct: Correct = correct,
    gmres: bool = False,
) -> pd.DataFrame:
    """How matrices of several condition numbers are solved by factors in one format.

    Columns: precision, condition, way ("plain" or "GMRES"), κ·u (roundoff), corrections, inner
    (GMRES's iterations, in all), done, first_error and error (of x, the largest number's relative
    one, before corrections and after), residuals (the backward errors, a tuple).
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other at matrices as small as these
    try:
        rows = [_solved(precision, each, size, correct, gmres) for each in conditions]
    finally:
        torch.set_num_threads(threads)
    return pd.DataFrame(rows)


def _solved(
    precision: str, condition: float, size: int, correct: Correct, gmres: bool
) -> dict[str, Any]:
    a = matrix_of(condition, size)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(size, dtype=torch.float64, generator=draw)
    b, factors = a @ x, factor(a, precision)
    solved = refine_by_gmres(a, b, factors) if gmres else refine(a, b, factors, correct)

    def error(found: torch.Tensor) -> float:
        return float((found - x).abs().max() / x.abs().max())

    return {
        "precision": precision,
        "condition": condition,
        "way": "GMRES" if gmres else "plain",
        "κ·u": condition * ROUNDOFF[precision],
        "corrections": solved.corrections,
        "inner": solved.inner,
        "done": solved.done,
        "first_error": error(factors.solve(b)),
        "error": error(solved.x),
        "residuals": solved.residuals,
    }
