"""Small updates in 16 bits, and systems that rough factors solve exactly: right, and wrong."""

import math

import pytest
import torch
from cases import for_all

from course.analysis import gpus
from labs import lab_numerics as refinement
from labs.lab_numerics import factors, updates
from labs.lab_numerics import solvers as refined


@for_all("precision", factors.FORMATS)
def test_factors_are_those_of_the_matrix(precision: str) -> None:
    a = refinement.matrix_of(10, 70)  # no multiple of the block
    found = refinement.factor(a, precision)
    lower = found.packed.tril(-1) + torch.eye(70, dtype=torch.float64)
    error = (a[found.order] - lower @ found.packed.triu()).abs().max()
    assert error < 40 * refinement.ROUNDOFF[precision]
    kept = found.packed.to(factors.FORMATS[precision]).double()
    assert torch.equal(kept, found.packed)  # numbers that the format has
    assert sorted(found.order.tolist()) == [*range(70)]
    assert lower.abs().max() <= 1 + refinement.ROUNDOFF[precision]  # the largest is the pivot


def test_factors_in_fp64_are_lapacks() -> None:
    a = refinement.matrix_of(1e3, 50)
    packed, pivots = torch.linalg.lu_factor(a)
    found = refinement.factor(a, "fp64", block=16)
    assert torch.allclose(found.packed, packed, atol=1e-12)
    rows = torch.lu_unpack(packed, pivots)[0].argmax(dim=0)
    assert torch.equal(found.order, rows)


def test_what_cannot_be_factored() -> None:
    with pytest.raises(ValueError, match="precision='fp8': choose fp64, fp32, fp16, bf16"):
        refinement.factor(torch.eye(3), "fp8")
    with pytest.raises(ValueError, match=r"a matrix of shape \(2, 3\): it must be square"):
        refinement.factor(torch.ones(2, 3), "fp16")


def test_a_matrix_has_its_condition_number() -> None:
    for condition in (1e2, 1e6):
        a = refinement.matrix_of(condition, 60)
        assert torch.linalg.cond(a).item() == pytest.approx(condition, rel=1e-6)
        assert a.abs().max() == 1


def test_sums_are_fp32_and_not_fp16() -> None:
    """A product of 16-bit numbers with sums in 16 bits would be off by much more."""
    ones = torch.full((1, 4096), 0.01).half().float()
    found = factors._product(ones, ones.t().contiguous(), torch.float16)
    assert found.item() == pytest.approx(4096 * ones[0, 0].item() ** 2, rel=1e-5)


@for_all("precision", ["fp32", "fp16", "bf16"])
def test_refinement_works_where_theory_says_so(precision: str) -> None:
    u = refinement.ROUNDOFF[precision]
    easy, hard = 0.05 / u, 500 / u
    plain = refinement.convergence(precision, [easy, hard], size=100)
    assert plain["done"].tolist() == [True, False]
    solved = plain.iloc[0]
    assert solved["error"] < 1e-16 * easy * 100 and solved["first_error"] > 1e-3
    assert solved["residuals"][-1] <= refined.good_enough(100)
    assert solved["corrections"] == len(solved["residuals"]) - 1


def test_gmres_reaches_further() -> None:
    beyond = [50 / refinement.ROUNDOFF["fp16"]]
    plain = refinement.convergence("fp16", beyond, size=100)
    by_gmres = refinement.convergence("fp16", beyond, size=100, gmres=True)
    assert not plain["done"].item() and by_gmres["done"].item()
    assert by_gmres["inner"].item() > by_gmres["corrections"].item() > 0


def test_infinite_numbers_end_refinement() -> None:
    a = 1e6 * refinement.matrix_of(10, 20)
    solved = refinement.refine(a, a.sum(dim=1), refinement.factor(a, "fp16"))
    assert not solved.done and solved.corrections == 0 and not math.isfinite(solved.residuals[0])


def test_the_three_ways_keep_updates() -> None:
    table = refinement.adding("bf16", updates=500)
    last = table.iloc[-1]
    assert last["alone"] == 1 and last["fp32 master"] == pytest.approx(1.05, abs=1e-4)
    assert last["with a carry"] == pytest.approx(1.05, abs=2**-7)
    assert last["rounded by chance"] == pytest.approx(1.05, abs=0.03)
    assert "rounded by chance" not in refinement.adding("fp16", updates=2)


def test_a_training_uses_what_it_is_given() -> None:
    """Batches and first weights are the same, so one step's losses are; updates then differ."""
    table = refinement.learned_in_bf16(steps=3, lr=0.5)
    assert list(table) == list(updates.WAYS) and (table.iloc[0] == table.iloc[0, 0]).all()
    assert table.iloc[2].nunique() > 1
    never = refinement.learned_in_bf16(
        steps=60,
        add=lambda total, carry, update: (total, carry),
        round_by=lambda n, _: n.bfloat16(),
    )
    as_ever = refinement.learned_in_bf16(steps=60)
    assert never["with a carry"].iloc[-1] > as_ever["with a carry"].iloc[-1]
    assert never["fp32 master"].equals(as_ever["fp32 master"])


def test_published_rates_have_their_sources() -> None:
    table = gpus.summary()
    assert table["source"].notna().all() and (table["fp16"] > table["fp32"]).all()
    assert {*table["architecture"]} - {"Pascal", "Blackwell Ultra"} == {*gpus.precisions().index}
    assert gpus.precisions()["source"].notna().all()


def test_pictures_say_what_they_show() -> None:
    conditions = [1e2, 1e6]
    plain = refinement.convergence("fp16", conditions, size=40)
    by_gmres = refinement.convergence("fp16", conditions, size=40, gmres=True)
    alt = refinement.plot_residuals(plain, by_gmres).alt
    assert "reaches fp64 up to condition number 1e+02; fp16, GMRES" in alt
    alt = refinement.plot_border(plain).alt
    assert alt.endswith(f"fp16, plain: {plain['corrections'][0]}, ✗")
    tables = {"bf16": refinement.adding("bf16", updates=50)}
    alt = refinement.plot_ways(tables, "updates of 0.0001", "weight").alt
    assert "alone: from 1 to 1; with a carry: " in alt


def test_what_a_gpu_measured_is_read_and_drawn() -> None:
    table = refinement.recorded("nvidia-h100")
    whole = table[(table["by"] == "cuSOLVER") & (table["precision"] == "fp64")]
    assert (whole["speedup"] == 1).all() and table["machine"].str.startswith("NVIDIA H100").all()
    assert (table["error"] < 1e-3).all() and (table["seconds"] > 0).all()
    drawn = refinement.plot_on_gpu(table)
    assert "fp64: from 1 to 1; fp32: from 1.09 to 0.986; " in drawn.alt
    with pytest.raises(ValueError, match="no refinement is recorded for 'nvidia-h200-x2': nvidia"):
        refinement.recorded("nvidia-h200-x2")
