"""LU factors in 16 bits: what is multiplied is rounded, sums are fp32, as on Tensor Cores.

Blocked LU with partial pivoting (Golub and Van Loan, *Matrix Computations*, 4th edition, section
3.4): a panel of columns is factored, then a matrix product updates all that lies right of it. The
product is nearly all of the arithmetic, and it is what Tensor Cores do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# Half the distance from 1 to the next larger number: what rounding changes at most, relatively.
ROUNDOFF = {name: torch.finfo(dtype).eps / 2 for name, dtype in FORMATS.items()}
BLOCK = 32  # columns of a panel


@dataclass(frozen=True)
class Factors:
    """P·A ≈ L·U. `packed` holds L below the diagonal (its own diagonal is 1) and U from it on."""

    packed: torch.Tensor  # fp64, of numbers that the format has
    order: torch.Tensor  # row i of P·A is row order[i] of A

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """x of L·U·x = P·right, for one vector, in fp64: about 2 n² operations."""
        column = right.double()[self.order][:, None]
        column = torch.linalg.solve_triangular(self.packed, column, upper=False, unitriangular=True)
        return torch.linalg.solve_triangular(self.packed, column, upper=True)[:, 0]


def matrix_of(
    condition: float, size: int, seed: int = 0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A random fp64 matrix with this condition number: what is largest in it is near 1.

    Q₁·S·Q₂, where Q₁ and Q₂ are random orthogonal matrices and S has singular values that fall from
    1 to 1/condition by one factor (Higham's `randsvd`, mode 3).
    """
    draw = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64).to(device))[0]
        for _ in range(2)
    )
    values = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64, device=device)
    matrix = left * values @ right
    return matrix / matrix.abs().max()


def factor(matrix: torch.Tensor, precision: str, block: int = BLOCK) -> Factors:
    """Factor a matrix whose numbers, and those of L and U, are rounded to a format.

    Panels are computed in fp32, products from rounded numbers with sums in fp32; of "fp64" all.

    Raises:
        ValueError: an unknown precision, or a matrix that is not square.
    """
    if precision not in FORMATS:
        raise ValueError(f"precision={precision!r}: choose {', '.join(FORMATS)}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a matrix of shape {tuple(matrix.shape)}: it must be square")
    dtype = FORMATS[precision]
    sums = torch.promote_types(dtype, torch.float32)
    work, size = matrix.to(dtype).to(sums, copy=True), len(matrix)
    order = torch.arange(size, device=matrix.device)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        panel, pivots, _ = torch.linalg.lu_factor_ex(work[begin:, begin:end])
        rows = _swapped(pivots) + begin
        place = begin + torch.arange(len(rows), device=matrix.device)
        touched = rows != place
        for each in (work, order):
            each[place[touched]] = each[rows[touched]]
        work[begin:, begin:end] = panel.to(dtype)
        upper = torch.linalg.solve_triangular(
            panel[: end - begin], work[begin:end, end:], upper=False, unitriangular=True
        )
        work[begin:end, end:] = upper.to(dtype)
        work[end:, end:] -= _product(work[end:, begin:end], work[begin:end, end:], dtype)
    return Factors(work.double(), order)


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of numbers that the format has: each product is exact in fp32, and so are sums but rounding.

    On a GPU Tensor Cores do just this with 16-bit inputs.
    """
    if left.is_cuda and dtype.itemsize == 2:
        return torch.mm(left.to(dtype), right.to(dtype), out_dtype=torch.float32)
    return left @ right


def _swapped(pivots: torch.Tensor) -> torch.Tensor:
    """Which row comes to which place, of the rows that a panel's pivots touch and those between."""
    found = pivots.tolist()
    rows = list(range(max([len(found), *found])))
    for place, pivot in enumerate(found):
        rows[place], rows[pivot - 1] = rows[pivot - 1], rows[place]
    return torch.tensor(rows, device=pivots.device)
