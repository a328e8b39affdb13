"""Runs that are compared take turns: when each computes, what it computes, and how it ends."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from job_helpers import (
    SCRIPTS,
    eventually,
    narrow_solution,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    over,
)

from course.config import rung
from course.jobs import launch
from course.runs.ratio import centre, explain_ratio, pair, ratio
from course.runs.run import Run, all_runs

# A step of steps.py sleeps for `lr` seconds.
SLEEPY = rung("baseline", quick=True, steps=40, warmup_steps=2, val_steps=0, lr=0.05)
SLOWER = replace(SLEEPY, rung="slower", lr=0.1)


SMALL_TRAINING = {
    "quick": True,
    "model": "resnet18",
    "image_px": 32,
    "batch_size": 4,
    "val_steps": 0,
    "warmup_steps": 2,
}


def spans(run: Run) -> list[tuple[float, float]]:
    """Return when each step of steps.py began and ended."""
    return [tuple(json.loads(line)) for line in (run.folder / "spans.jsonl").open()]


def launch_pair(second=SLOWER, first=SLEEPY, script="steps.py", **options) -> tuple[Run, Run]:
    return tuple(launch.launch_all(SCRIPTS / script, [first, second], turns=True, **options))


def test_only_one_computes_in_blocks_of_half_a_second_and_the_ratio_is_theirs() -> None:
    a, b = launch_pair()
    assert [over(a).status, over(b).status] == ["ok", "ok"]
    both = sorted([(*span, 0) for span in spans(a)] + [(*span, 1) for span in spans(b)])
    for (_, ended, _), (began, _, _) in zip(both, both[1:]):
        assert began >= ended  # no run computes in another run's turn
    blocks = a.steps[a.steps["turn"] > 0].groupby("turn")["step_s"].sum()
    assert len(blocks) >= 4
    # 40 steps of 0.05 s are less than 8 blocks of half a second, so a block has 4 of them.
    assert blocks.iloc[:-1].between(0.19, 0.4).all()
    assert a.record.turns == len(blocks)
    found = ratio(b, a)
    assert found.turns >= 8
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(0.5, rel=0.1)
    assert "in turns" in explain_ratio(found, b)


def test_an_early_end_comes_with_a_budget_once_the_ratio_is_sure() -> None:
    ample = {"steps": 400, "budget_s": 30.0}
    a, b = launch_pair(replace(SLOWER, **ample), replace(SLEEPY, **ample))
    over(a), over(b)
    found = ratio(b, a)
    assert a.record.steps_measured < 398
    assert found.turns >= 8  # how many more depends on what else the machine does
    assert "within 5%" in explain_ratio(found, b)


def test_the_budget_ends_turns_that_stay_unsure() -> None:
    few = {"steps": 400, "budget_s": 1.0}
    a, b = launch_pair(replace(SLOWER, **few), replace(SLEEPY, **few))
    over(a), over(b)
    assert a.record.turns == b.record.turns < 8
    assert "the budget of 1 s" in explain_ratio(ratio(b, a), b)
    assert "the extremes" in explain_ratio(ratio(b, a), b)


def test_launch_against_repeats_the_snapshot_beside(runs_root: Path) -> None:
    script = runs_root.parent / "mine.py"
    script.write_text((SCRIPTS / "steps.py").read_text())
    before = over(launch.launch(script, SLEEPY))
    script.write_text(script.read_text() + "# edited\n")
    run = launch.launch(script, SLOWER, against=before)
    run.wait(timeout_s=120)
    (repeat,) = run.repeats
    assert repeat.script.read_text() == before.script.read_text() != run.script.read_text()
    assert repeat.name == before.name
    assert repeat.status == "ok"
    assert pair(run, before) == (run, repeat)
    assert {each.name for each in all_runs()} == {before.name, run.name}  # it is not a separate run
    assert launch.launch(script, SLOWER, against=before) == run
    assert launch.launch(script, SLOWER) != run


def test_a_member_killed_in_its_turn_blocks_nobody() -> None:
    a, b = launch_pair()
    (b.folder / "dies.json").write_text(json.dumps({"step": 8, "by": "SIGKILL"}))
    assert over(a).status == "ok"
    assert len(a.steps) == SLEEPY.steps
    assert over(b).status == "lost"
    assert "SIGKILL" in b.record.error
    assert a.record.left == [b.name]


def test_a_cancelled_member_ends_its_turns_alone() -> None:
    a, b = launch_pair()
    eventually(lambda: len(b.steps) > 6, "some turns are over")
    b.cancel()
    assert b.status == "cancelled"
    assert over(a).status == "ok"
    assert len(a.steps) == SLEEPY.steps
    assert len(b.steps) < SLOWER.steps


def test_cancelling_the_run_ends_its_repetition(runs_root: Path) -> None:
    # Long enough that the repetition is not over when a busy machine checks it.
    before = over(launch.launch(SCRIPTS / "steps.py", replace(SLEEPY, steps=300, lr=0.02)))
    run = launch.launch(SCRIPTS / "steps.py", replace(SLOWER, steps=300), against=before)
    eventually(lambda: len(run.steps) > 4, "some turns are over")
    run.cancel()
    assert [run.status, run.repeats[0].status] == ["cancelled", "cancelled"]


def test_members_end_where_the_supervisor_is_killed() -> None:
    a, b = launch_pair()
    eventually(lambda: a.started and b.started and len(a.steps) > 2, "both have begun")
    os.kill(int(a.started["supervisor"][0]), signal.SIGKILL)
    for run in (a, b):
        eventually(lambda run=run: launch.refresh(run) in ("lost", "failed"), f"{run} is over")


def test_training_is_that_of_the_run_alone(tmp_path: Path, tiny_set: Path) -> None:
    script = narrow_solution(tmp_path)
    images = {"data": "imagenet", "data_root": str(tiny_set), "workers": 1}
    config = rung("dataloader", **SMALL_TRAINING | images | {"steps": 6, "val_steps": 1})
    other = replace(config, rung="other", precision="fp32", workers=0)
    alone = over(launch.launch(script, config))
    together = launch.launch(script, config, against=over(launch.launch(script, other)))
    together.wait(timeout_s=120)
    assert together.record.turns > 0
    assert alone.steps["loss"].tolist() == together.steps["loss"].tolist()
    assert alone.record.val_loss == together.record.val_loss


def test_workers_of_a_waiting_run_stand_still(tiny_set: Path) -> None:
    """No image is loaded during the blocks of the other run; the loader records its times."""
    images = {"data": "imagenet", "data_root": str(tiny_set), "workers": 1}
    long = {"batch_size": 2, "steps": 12, "persistent_workers": True}
    first = rung("dataloader", **SMALL_TRAINING | images | long)
    a, b = launch_pair(replace(first, rung="other", seed=1), first, script="train_noting.py")
    assert [over(a).status, over(b).status] == ["ok", "ok"]
    for run, other in ((a, b), (b, a)):
        loaded = [float(line) for line in (run.folder / "loaded.txt").read_text().split()]
        theirs = spans(other)
        inside = sum(began + 0.01 < at < ended - 0.01 for at in loaded for began, ended in theirs)
        assert len(loaded) >= 24
        assert inside == 0


def test_several_ranks_take_one_turn(tmp_path: Path) -> None:
    script = narrow_solution(tmp_path)
    config = rung("device", **SMALL_TRAINING, device="cpu", data="synthetic", steps=6)
    before = over(launch.launch(script, config))
    run = launch.launch(script, config, gpus=2, against=before)
    run.wait(timeout_s=180)
    assert ratio(run, before).turns == run.record.turns > 0
    assert [run.rank_steps(rank)["turn"].tolist() for rank in (0, 1)] == [
        run.steps["turn"].tolist()
    ] * 2


# Slow enough to use up a budget before the last step.
SLOWLY = """
from time import sleep
in_no_time = Meter.lap
Meter.lap = lambda *phase, **loss: sleep(0.15 * bool(loss)) or in_no_time(*phase, **loss)
"""


def test_ranks_alone_end_in_the_same_step_whatever_their_budget(tmp_path: Path) -> None:
    slow = {"device": "cpu", "data": "synthetic", "steps": 12, "val_steps": 1, "budget_s": 0.05}
    config = rung("device", **SMALL_TRAINING | slow)
    run = over(launch.launch(narrow_solution(tmp_path, SLOWLY), config, gpus=2))
    assert run.status == "ok", run.explain()
    assert len(run.rank_steps(0)) == len(run.rank_steps(1)) == 12


def test_groups_that_are_refused(runs_root: Path) -> None:
    with pytest.raises(ValueError, match="two of these runs are the same"):
        launch_pair(SLEEPY, SLEEPY)
    with pytest.raises(ValueError, match="give all the same"):
        launch_pair(SLEEPY, replace(SLOWER, budget_s=3.0))
    assert not all_runs()


def test_runs_that_do_not_fit_together_run_one_after_the_other(monkeypatch) -> None:
    # The prediction exceeds the memory of any machine; the script itself needs almost none.
    huge = {"batch_size": 2**17, "image_px": 224, "model": "resnet18", "steps": 6, "lr": 0.01}
    a, b = launch_pair(replace(SLOWER, **huge), replace(SLEEPY, **huge))
    assert [over(a).status, over(b).status] == ["ok", "ok"]
    assert "turn" not in a.steps
    assert max(end for _, end in spans(a)) <= min(begin for begin, _ in spans(b))
    found = ratio(b, a)
    assert found.turns == 0
    assert "GiB of the host's memory" in explain_ratio(found, b)


@pytest.mark.parametrize("turns", [6, 12])
def test_the_interval_holds_the_truth_as_often_as_it_says(turns: int) -> None:
    """A against A, on a machine that slows down for seconds: the order is random."""
    random = np.random.default_rng(turns)
    held = 0
    for _ in range(400):
        pace = np.repeat(random.choice([1.0, 1.6], turns), 2) * random.lognormal(0, 0.02, 2 * turns)
        drift = np.exp(0.3 * np.sin(np.arange(2 * turns)))
        ones, twos = (pace * drift).reshape(turns, 2).T
        swapped = random.random(turns) < 0.5
        ratios = np.where(swapped, ones / twos, twos / ones)
        _, low, high = centre(ratios)
        held += low <= 1 <= high
    assert held / 400 >= 0.93
