"""What changes bits, and what checkpoints cost: tables of real sums, and of steps made up."""

import json
from pathlib import Path

import pytest
from job_helpers import prepared

from course.config import Config, rung
from course.runs.run import Run
from labs import day4_5_practice as practice


def test_the_order_of_a_sum_changes_its_bits() -> None:
    found = practice.sums()
    exact = found.pop("in fp64")
    assert found.nunique() == len(found) == 4
    errors = (found - exact).abs()
    assert errors.max() < 0.1 and errors.idxmin() == "in pairs"


@pytest.mark.slow
def test_threads_change_bits_and_nothing_else_does() -> None:
    losses = practice.threads()
    for count in ("1", "2"):
        assert (losses[count] == losses[f"{count} again"]).all()
    apart = (losses["1"] - losses["2"]).abs()
    assert 0 < apart.max() < 1e-4


def test_workers_change_crops_unless_an_image_draws_for_itself() -> None:
    table = practice.crops()
    assert table["by worker"].nunique() == len(table) == 3
    assert table["by image"].nunique() == 1


def made(folder: Path, config: Config, seconds: list[float], evidence: dict | None = None) -> Run:
    run = prepared(folder, "", config)
    rows = [{"step": at, "step_s": each, "loss": each} for at, each in enumerate(seconds)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = {"status": "ok", "evidence": evidence or {}}
    (folder / "record.json").write_text(json.dumps(record))
    return run


def test_the_mean_has_what_the_median_hides(tmp_path: Path) -> None:
    size = {"warmup_steps": 2, "steps": 10}
    never = made(tmp_path / "never", rung("channels_last", **size), [9, 9] + [0.1] * 8)
    kept = rung("restarted", **size, save_every=4)
    # Steps are counted from 0: what is saved after 4 steps takes place in step 4.
    saved = made(tmp_path / "saved", kept, [9, 9, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1, 0.5, 0.1])
    table = practice.costs([saved, never]).set_index("saved")
    assert [*table.index] == ["never", "torch.save"]
    row = table.loc["torch.save"]
    assert row["step_ms"] == pytest.approx(100) and row["behind_ms"] == pytest.approx(500)
    assert row["save_ms"] == pytest.approx(400) and row["cost"] == pytest.approx(1.0)
    alt = practice.plot_steps([never, saved], "2 cores").alt
    assert "never: 100 ms" in alt
    assert "torch.save: 100 ms, after a save (every 4 steps) 500 ms" in alt


def test_losses_of_two_processes_are_joined(tmp_path: Path) -> None:
    config = rung("restarted", steps=4, warmup_steps=1)
    whole = made(tmp_path / "whole", config, [4, 3, 2, 1])
    run = made(tmp_path / "run", config, [4, 3, 2, 1.5], {"began_at": 2})
    table = practice.joined(run, whole)
    assert table["process"].tolist() == [1, 1, 2, 2]
    assert table["same"].tolist() == [True, True, True, False]
    alt = practice.plot_stopped(run, whole).alt
    assert "goes on at step 2; 3 of 4 steps have the same loss" in alt


def test_what_is_lost_is_least_where_both_parts_are_equal() -> None:
    hours = [0.1, 0.2, 0.4, 0.8]
    shares = [practice.lost(1, each, nodes=100, broken_days=100) for each in hours]
    assert shares[0] == pytest.approx(1 / 6 + 0.1 / 48)
    best = (2 / 60 * 24) ** 0.5  # Young's: √(2 · minutes · hours between accidents)
    at_best = practice.lost(1, best, nodes=100, broken_days=100)
    assert at_best == pytest.approx(2 * (1 / 60 / best)) and at_best < min(shares)
    with pytest.raises(ValueError, match="must be above 0"):
        practice.lost(1, 0, 1, 1)


def test_the_best_distance_is_told_to_those_who_do_not_see_it() -> None:
    alt = practice.plot_best_distance(save_min=1, nodes=(1, 2048), broken_days=264).alt
    assert "1 node: best every 14" in alt and "2,048 nodes: best every 19 min, 10" in alt


def test_small_trainings_differ_in_how_they_save() -> None:
    ways = [practice.small(how) for how in ("never", "torch.save", "async_save")]
    assert [(each.save_every > 0, each.async_save) for each in ways] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert {each.script for each in ways} == {"train_restarted.py"}
    with pytest.raises(ValueError, match="choose never, torch.save, async_save"):
        practice.small("sometimes")
