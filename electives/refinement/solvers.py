"""Systems of equations solved by LU factors in 16 bits and iterative refinement.

Factors: blocked LU with partial pivoting (Golub and Van Loan, *Matrix Computations*, 4th edition,
section 3.4). A panel of columns is factored, then a matrix product updates all columns to its
right. The product is nearly all of the work, and Tensor Cores compute it: they multiply 16-bit
numbers and add in fp32.

Refinement: Wilkinson 1963; in three precisions, and with GMRES for the corrections: Carson and
Higham, "Accelerating the solution of linear systems by iterative refinement in three precisions",
SIAM J. Sci. Comput. 40(2), 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# Half the distance from 1 to the next larger number: the largest relative error of rounding.
ROUNDOFF = {name: torch.finfo(dtype).eps / 2 for name, dtype in FORMATS.items()}
BLOCK = 32  # columns of a panel
MAX_CORRECTIONS = 30  # as in LAPACK's dsgesv
# GMRES: its tolerance for one correction, and the iterations it may take for one and for all.
GMRES_TOLERANCE, GMRES_PER_CORRECTION, GMRES_TOTAL = 1e-4, 100, 300
Solve = Callable[[torch.Tensor], torch.Tensor]
Correct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Solve], torch.Tensor]


@dataclass(frozen=True)
class Factors:
    """P·A ≈ L·U. `packed` contains L below the diagonal (L has 1 on it) and U from it on."""

    packed: torch.Tensor  # fp64, rounded to the format
    order: torch.Tensor  # row i of P·A is row order[i] of A

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """Solve L·U·x = P·right for one vector, in fp64: about 2 n² operations."""
        column = right.double()[self.order][:, None]
        column = torch.linalg.solve_triangular(self.packed, column, upper=False, unitriangular=True)
        return torch.linalg.solve_triangular(self.packed, column, upper=True)[:, 0]


def random_matrix(condition: float, size: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Create a random fp64 matrix with this condition number and largest element ±1.

    Q₁·S·Q₂, where Q₁ and Q₂ are random orthogonal matrices and S has singular values that fall
    geometrically from 1 to 1/condition (Higham's `randsvd`, mode 3).
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(
            torch.randn(size, size, generator=generator, dtype=torch.float64).to(device)
        )[0]
        for _ in range(2)
    )
    values = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64, device=device)
    matrix = left * values @ right
    return matrix / matrix.abs().max()


def factor(matrix: torch.Tensor, precision: str) -> Factors:
    """Factor a square matrix; A, L and U are rounded to one of FORMATS, and sums are fp32 or fp64.

    Products of numbers that fit a 16-bit format, with sums in fp32, are those of Tensor Cores.
    """
    if precision not in FORMATS:
        raise ValueError(f"precision={precision!r}: choose {', '.join(FORMATS)}")
    dtype = FORMATS[precision]
    work = matrix.to(dtype).to(torch.promote_types(dtype, torch.float32), copy=True)
    order = torch.arange(len(matrix))
    for begin in range(0, len(matrix), BLOCK):
        end = begin + BLOCK
        panel, pivots, _ = torch.linalg.lu_factor_ex(work[begin:, begin:end])
        rows = [*range(begin, len(matrix))]
        for place, pivot in enumerate(pivots.tolist()):
            rows[place], rows[pivot - 1] = rows[pivot - 1], rows[place]
        work[begin:], order[begin:] = work[rows], order[rows]
        work[begin:, begin:end] = panel.to(dtype)
        upper = torch.linalg.solve_triangular(
            panel[:BLOCK], work[begin:end, end:], upper=False, unitriangular=True
        )
        work[begin:end, end:] = upper.to(dtype)
        work[end:, end:] -= work[end:, begin:end] @ work[begin:end, end:]
    return Factors(work.double(), order)


@dataclass(frozen=True)
class Solution:
    """A solution x, and the backward errors before the first correction and after each."""

    x: torch.Tensor
    residuals: tuple[float, ...]
    gmres_iterations: int  # in all; 0 for plain refinement
    converged: bool  # to what fp64 itself would reach

    @property
    def corrections(self) -> int:
        return len(self.residuals) - 1


def backward_error(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """Compute ‖b − A·x‖ / (‖A‖·‖x‖ + ‖b‖) in the maximum norm.

    A and b must be changed by this much, relatively, for x to be exact (Rigal and Gaches 1967).
    """
    norm = a.abs().sum(dim=1).max() * x.abs().max() + b.abs().max()
    return float((b - a @ x).abs().max() / norm)


def target_error(size: int) -> float:
    """Return the backward error at which LAPACK's dsgesv stops: √n times fp64's roundoff."""
    return math.sqrt(size) * ROUNDOFF["fp64"]


def correct(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, solve: Solve) -> torch.Tensor:
    """Correct x once: solve for the fp64 residual with the rough factors, and add the result."""
    return x + solve(b - a @ x)


def refine(
    a: torch.Tensor,
    b: torch.Tensor,
    factors: Factors,
    correct: Correct = correct,
    gmres: bool = False,
) -> Solution:
    """Solve with rough factors, and correct until fp64 itself could do no better.

    With `gmres`, GMRES computes each correction, and the factors are its preconditioner.
    """
    x, iterations = factors.solve(b), 0
    residuals = [backward_error(a, x, b)]
    while target_error(len(b)) < residuals[-1] < math.inf:
        if len(residuals) > MAX_CORRECTIONS or iterations >= GMRES_TOTAL:
            break
        if gmres:
            correction, count = _gmres(a, b - a @ x, factors.solve)
            x, iterations = x + correction, iterations + count
        else:
            x = correct(a, b, x, factors.solve)
        residuals.append(backward_error(a, x, b))
    return Solution(x, tuple(residuals), iterations, residuals[-1] <= target_error(len(b)))


def _gmres(a: torch.Tensor, residual: torch.Tensor, solve: Solve) -> tuple[torch.Tensor, int]:
    """Solve (L·U)⁻¹·A·d = (L·U)⁻¹·residual; return d and the number of iterations."""
    from scipy.sparse.linalg import LinearOperator, gmres

    def multiply(vector: np.ndarray) -> np.ndarray:
        return solve(a @ torch.from_numpy(vector.ravel())).numpy()

    norms: list[float] = []
    correction, _ = gmres(
        LinearOperator(tuple(a.shape), multiply, dtype=np.float64),
        solve(residual).numpy(),
        rtol=GMRES_TOLERANCE,
        restart=GMRES_PER_CORRECTION,
        maxiter=1,
        callback=norms.append,
        callback_type="pr_norm",
    )
    return torch.from_numpy(correction), len(norms)


@threadpool_limits.wrap(limits=1)  # on small matrices, threads only wait for each other
def solve_by_condition(
    precision: str,
    conditions: Iterable[float],
    size: int = 200,
    correct: Correct = correct,
    gmres: bool = False,
) -> pd.DataFrame:
    """Solve one system per condition number with factors in one format.

    Columns: condition, κ·u (u: roundoff), steps (corrections, or GMRES's iterations), converged,
    initial_error and error (of x, relative, in the maximum norm), residuals (backward errors, a
    tuple).
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, dtype=torch.float64, generator=generator)

    def relative_error(solution: torch.Tensor) -> float:
        return float((solution - x).abs().max() / x.abs().max())

    def solve(condition: float) -> dict[str, Any]:
        a = random_matrix(condition, size)
        b, factors = a @ x, factor(a, precision)
        solution = refine(a, b, factors, correct, gmres)
        return {
            "condition": condition,
            "κ·u": condition * ROUNDOFF[precision],
            "steps": solution.gmres_iterations or solution.corrections,
            "converged": solution.converged,
            "initial_error": relative_error(factors.solve(b)),
            "error": relative_error(solution.x),
            "residuals": solution.residuals,
        }

    return pd.DataFrame([solve(condition) for condition in conditions])
