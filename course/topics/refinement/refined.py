"""Iterative refinement: a rough solution, corrected from residuals that are computed exactly.

Wilkinson 1963; in three precisions, and with GMRES for the corrections: Carson and Higham,
"Accelerating the solution of linear systems by iterative refinement in three precisions", SIAM J.
Sci. Comput. 40(2), 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from course.topics.refinement.factors import ROUNDOFF, Factors

MOST = 40  # corrections; LAPACK's dsgesv gives up after 30
INNER, INNER_MOST = 1e-4, 60  # how far GMRES solves for one correction, and its iterations at most
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
    while found[-1] > good_enough(len(b)) and len(found) <= most and math.isfinite(found[-1]):
        x = correct(a, b, x, factors.solve)
        found.append(backward_error(a, x, b))
    return Solved(x, tuple(found), 0, found[-1] <= good_enough(len(b)))


def refine_by_gmres(a: torch.Tensor, b: torch.Tensor, factors: Factors, most: int = MOST) -> Solved:
    """The same, but each correction is GMRES's, and the rough factors are its preconditioner."""
    inner = 0

    def by_gmres(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, solve: Solve) -> torch.Tensor:
        nonlocal inner
        correction, iterations = _gmres(a, b - a @ x, solve)
        inner += iterations
        return x + correction

    solved = refine(a, b, factors, by_gmres, most)
    return Solved(solved.x, solved.residuals, inner, solved.done)


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
