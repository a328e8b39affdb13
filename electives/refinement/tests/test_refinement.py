"""Systems of equations that rough factors solve exactly."""

import math

import pytest
import torch

from electives import refinement as lab
from electives.refinement import solvers

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats


@pytest.mark.parametrize("precision", solvers.FORMATS)
def test_factors_multiply_to_the_matrix(precision: str) -> None:
    a = lab.random_matrix(10, 70)  # not a multiple of the block
    factors = lab.factor(a, precision)
    lower = factors.packed.tril(-1) + torch.eye(70, dtype=torch.float64)
    error = (a[factors.order] - lower @ factors.packed.triu()).abs().max()
    assert error < 40 * lab.ROUNDOFF[precision]
    rounded = factors.packed.to(solvers.FORMATS[precision]).double()
    assert torch.equal(rounded, factors.packed)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_refinement_converges_as_theory_predicts_and_gmres_further(precision: str) -> None:
    u = lab.ROUNDOFF[precision]
    conditions = [0.05 / u, 50 / u, 5e4 / u]
    plain = lab.solve_by_condition(precision, conditions, size=100)
    assert plain["converged"].tolist() == [True, False, False]
    easy = plain.iloc[0]
    assert easy["error"] < 1e-14 * easy["condition"] and easy["initial_error"] > 1e-3
    gmres = lab.solve_by_condition(precision, conditions[:2], size=100, gmres=True)
    assert gmres["converged"].all() and gmres["steps"].is_monotonic_increasing


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision='fp8': choose fp64, fp32, fp16, bf16"):
        lab.factor(lab.random_matrix(10, 4), "fp8")


def test_overflow_ends_refinement() -> None:
    a = 1e6 * lab.random_matrix(10, 20)
    solution = lab.refine(a, a.sum(dim=1), lab.factor(a, "fp16"))
    assert not solution.converged and not math.isfinite(solution.residuals[0])


def test_figures_describe_what_they_draw() -> None:
    conditions = [1e2, 1e6]
    plain = lab.solve_by_condition("fp16", conditions, size=40)
    assert "up to κ = 1e+02" in lab.plot_convergence({"fp16": plain}).alt
    recorded = lab.load_measurements("nvidia-h100")
    picture = lab.plot_gpu_speedup(recorded)
    assert "fp64: from 1 to 1; fp32: from 1.09 to 0.986; " in picture.alt
    styles = {line.get_label(): line.get_linestyle() for line in picture.axes[1].lines}
    assert styles["fp16"] != styles["tf32"]  # which have nearly the same times
