"""The check of choose_plan: right answers pass, and wrong ones learn what is wrong."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course import check_written
from labs.two_dimensions import verify
from labs.two_dimensions.plans import Machines, Network, Plan, choose_plan, peak_gib

PART = "network.weights / plan.tensor / plan.stages"
STORED = "16 * part / plan.copies + 8 * part / network.layers if plan.shard else 16 * part"
TOKENS = "network.tokens * batch / plan.copies / plan.passes * min(plan.stages, plan.passes)"
KEPT = "tokens * network.width * network.layers / plan.stages * (10 + 24 / plan.tensor)"
FITS = "stored + kept <= 0.9 * machines.memory_gib * 2**30"
KEY = "key=lambda plan: lab.step_s(network, machines, plan, batch, knee)"
BEST = f"min(fitting, {KEY}, default=None)"
RIGHT = (PART, STORED, TOKENS, KEPT, FITS, BEST)


def with_other(place: int, answer: str) -> tuple[str, ...]:
    """Return the right answers, with another one in this place."""
    return (*RIGHT[:place], answer, *RIGHT[place + 1 :])


WRONG = {
    with_other(0, "network.weights"): "8 billion, 2 sequences, 8 GPUs: .* fits and comes first",
    with_other(0, "network.weights / plan.stages"): "8 billion, 2 sequences, 8 GPUs",
    with_other(1, "16 * part"): "as fast as FSDP2 8 .* which fits and comes first",
    with_other(1, "16 * part / plan.copies"): "DDP 8 .* needs 11.4 of 11 GiB",
    with_other(1, "16 * part / (plan.copies if plan.shard else 1)"): "37 GiB: FSDP2 8 in 4 passes",
    with_other(1, STORED.replace("8 * part", "4 * part")): "FSDP2 8 in 4 passes.* 33.8 of 37 GiB",
    with_other(1, STORED.replace("8 * part", "8 * network.weights")): "22 GiB",
    with_other(1, STORED.replace("else 16", "else 8 * part / network.layers + 16")): "1 GB/s: ",
    with_other(2, "network.tokens * batch / plan.copies"): "DDP 8 in 2 passes .* fits|as long as",
    with_other(2, TOKENS.partition(" * min")[0]): "20 GiB",
    with_other(3, "tokens * network.width * network.layers / plan.stages * 34"): "22 GiB",
    with_other(3, "tokens * network.width * network.layers * (10 + 24 / plan.tensor)"): "20 GiB",
    with_other(3, KEPT.replace("(10 + 24 / plan.tensor)", "34 / plan.tensor")): "20 GiB",
    with_other(4, FITS.replace("0.9 * ", "")): "9.87 of 10 GiB, but a tenth must stay free",
    with_other(4, FITS.replace("2**30", "1e9")): "11 GiB: .* fits and comes first",
    with_other(4, "True"): "DDP 8 .* needs 11.4 of 11 GiB",
    with_other(5, "fitting[0] if fitting else None"): "times as long as",
    with_other(5, BEST.replace("fitting,", "fitting[::-1],")): "which fits and comes first",
    with_other(5, f"str({BEST})"): "it returns 'DDP 8', expected one of lab.possible_plans",
    with_other(5, f"tuple({BEST})"): r"it returns \(8, False, 1, 1, 1\), expected one of",
    with_other(5, f"{BEST}._replace(copies=8.0)"): r"it returns Plan\(copies=8.0, .* expected one",
    with_other(5, f"{BEST}._replace(copies=64)"): r"it returns Plan\(copies=64, .* expected one",
    with_other(5, BEST.replace(", default=None", "")): "it raised ValueError",
}


@pytest.fixture
def define(tmp_path: Path, runs_root: Path) -> Callable[..., Callable]:
    def make(*answers: str) -> Callable:
        cell = filled(cell_of("two_dimensions", "choose_plan"), *answers)
        return defined(cell, "choose_plan", tmp_path, "from labs import two_dimensions as lab\n")

    return make


def test_a_right_answer_passes_and_an_untouched_cell_says_where_its_blank_is(define) -> None:
    checked = check_written("two_dimensions.plan", mine := define(*RIGHT))
    assert checked.passed and checked.function is mine, checked
    untouched = check_written("two_dimensions.plan", define())
    assert untouched.failed and untouched.function is choose_plan
    assert "a blank is left" in untouched.parts[0].evidence


def test_wrong_answers_hear_what_is_wrong(define) -> None:
    for answers, words in WRONG.items():
        checked = check_written("two_dimensions.plan", define(*answers))
        assert checked.failed and re.search(words, repr(checked)), f"{answers}: {checked!r}"


def test_a_plan_that_was_slow_when_recorded_fails() -> None:
    def with_tensor(network: Network, machines: Machines, batch: int, knee: float) -> Plan:
        return Plan(1, tensor=2)

    with pytest.raises(
        AssertionError, match=r"CoAtNet-5, .*, batch 48, 80 GiB: tensor 2 reached 68% .* of DDP 2"
    ):
        verify.check_recordings(with_tensor)


def test_coatnet_5_has_the_memory_that_was_recorded_with_shards() -> None:
    """Its width is fitted to one GPU's peak, without shards."""
    network = verify.coatnet_5()
    assert peak_gib(network, Plan(1), 24) == pytest.approx(26.5, abs=0.1)
    assert peak_gib(network, Plan(2, shard=True), 48) == pytest.approx(21.5, abs=0.5)
