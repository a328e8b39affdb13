"""Tests of searches, pruning, tables, figures, and wrong requests."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import (
    SCRIPTS,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    prepared,
)

from course.config import rung
from course.jobs.launch import JobError
from course.runs.run import FOLDER_VARIABLE
from course.training.recorder import recording
from labs import search as lab
from labs.search import trial_queue, trials
from labs.search.asha import promote, simulate_workers
from labs.search.halving import successive_halving
from labs.search.trials import ABOUT, FOLDER

LIGHT = {"script": SCRIPTS / "trial_light.py"}
CONFIG = rung("baseline", quick=True, lr=0.5)
RATES = {"lr": (0.01, 10.0, "log")}


def test_a_search_continues(runs_root: Path, capsys: pytest.CaptureFixture) -> None:
    two_trials = lab.search("tpe", RATES, CONFIG, trials=2, name="mine", **LIGHT)
    first_runs = two_trials.runs
    shown = capsys.readouterr().out
    assert "mine [none complete]" in shown and "mine [best 0." in shown
    assert "[best 0.000]" not in shown
    assert first_runs[0].launched["trial"]["params"]["lr"] == 0.5  # the config's value comes first
    three_trials = lab.search("tpe", RATES, CONFIG, trials=3, name="mine", **LIGHT)
    assert three_trials.runs[:2] == first_runs and len(three_trials.runs) == 3
    table = three_trials.table()
    assert table["state"].tolist() == ["complete"] * 3
    assert three_trials.best.record.val_top1 == table["val_top1"].max()
    with pytest.raises(ValueError, match="a different search has this name .space"):
        lab.search("tpe", {"lr": (0.1, 1.0)}, CONFIG, trials=1, name="mine", **LIGHT)


@pytest.mark.parametrize(
    ("sampler", "space", "message"),
    [
        ("best", RATES, "no sampler 'best': choose grid, random, tpe"),
        ("tpe", {}, r"space=\{\}: name the fields to search"),
        ("tpe", {"learning_rate": [0.1]}, "no setting 'learning_rate'"),
        ("tpe", {"lr": (3.0, 0.1)}, r"lr=\(3.0, 0.1\): the least must be below the most"),
        ("tpe", {"lr": (3.0,)}, "a range is"),
        ("tpe", {"optimizer": ["sgd", "adam"]}, "optimizer='adam' .*: choose sgd"),
        ("tpe", {"rung": ["a"]}, "rung is a label"),
        ("grid", RATES, "a grid tries values, and lr has a range"),
    ],
)
def test_wrong_spaces_are_refused(sampler: str, space: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lab.search(sampler, space, CONFIG, trials=2, **LIGHT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pruner": "mean"}, "no pruner 'mean': choose none, median, asha, hyperband"),
        ({"site": "recorded-nvidia-h200"}, "starts no jobs"),
        ({"trials": 0}, "trials=0: expected 1 or more"),
        ({"workers": 2}, "this machine computes one job at a time"),
        ({"config": replace(CONFIG, val_steps=0)}, "val_steps=0"),
        ({"name": "../../x"}, "expected letters, digits, _ . and -"),
    ],
)
def test_wrong_settings_are_refused(runs_root: Path, settings: dict, message: str) -> None:
    arguments = {"config": CONFIG, "trials": 2} | LIGHT | settings
    with pytest.raises(ValueError, match=message):
        lab.search("tpe", RATES, **arguments)
    assert not [*runs_root.glob("*/launch.json")]


def test_a_script_that_fails_ends_the_search(runs_root: Path) -> None:
    with pytest.raises(JobError, match="the first 3 trials of .* failed") as caught:
        lab.search("random", RATES, CONFIG, trials=9, script=SCRIPTS / "raises.py")
    assert "raises" in str(caught.value)
    assert len([*runs_root.glob("*/launch.json")]) == 3


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Return a study with four finished trials: 0.2, 0.3, 0.4, 0.5 after each of 6 epochs."""
    folder = tmp_path / FOLDER / "one"
    folder.mkdir(parents=True)
    (folder / ABOUT).write_text(json.dumps({"pruner": "median", "config": {"epochs": 6}}))
    known = trials.open_study(folder)
    for value in (0.2, 0.3, 0.4, 0.5):
        trial = known.ask()
        for epoch in range(1, 7):
            trial.report(value, epoch)
        known.tell(trial, value)
    return folder


def test_pruning_ends_the_job_which_keeps_all_that_it_measured(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = trials.open_study(study).ask().number
    run = prepared(study.parent.parent / "run", "", rung("baseline", epochs=6))
    launched = run.launched | {
        "trial": {"study": "one", "number": number},
        "hooks": trial_queue.HOOKS,
    }
    (run.folder / "launch.json").write_text(json.dumps(launched))
    monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
    with recording() as recorder:
        for _ in range(6):
            recorder.epoch(val_loss=1.0, val_top1=0.25)
    assert run.status == "cancelled" and len(run.record.epochs) == 2
    error = "pruned after epoch 2 of 6: val_top1 was 0.250, and 3 of 4 others had more by then"
    assert run.record.error == error and trial_queue.is_pruned(run.record)
    trial_queue.finish(study, run)
    assert trials.open_study(study).trials[number].state.name == "PRUNED"


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("left", [1, 0.5])  # of the last line; 1: all but its end
def test_a_journal_that_is_cut_within_a_line_continues(
    study: Path, left: float, is_open: bool, capsys: pytest.CaptureFixture
) -> None:
    journal, known = study / trials.JOURNAL, trials.open_study(study)
    last = journal.read_bytes().splitlines()[-1]
    with journal.open("ab") as file:
        file.write(last[: int(left * len(last))])
    for number in (4, 5):
        known = known if is_open else trials.open_study(study)
        trial = known.ask()
        assert trial.number == number
        known.tell(trial, 0.7)
    assert trials.open_study(study).best_value == 0.7
    assert "the search continues from the line before" in capsys.readouterr().err
    assert {len(row.intermediate_values) for row in trials.open_study(study).trials[:4]} == {6}


def test_a_journal_with_a_damaged_line_continues_before_it(
    study: Path, capsys: pytest.CaptureFixture
) -> None:
    journal = study / trials.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:-2], lines[-2][:9] + lines[-1]])
    journal.write_bytes(damaged)
    known = trials.open_study(study)
    assert [trial.value for trial in known.trials] == [0.2, 0.3, 0.4, None]
    assert (study / "journal.damaged").read_bytes() == damaged
    known.tell(3, 0.5)
    assert trials.open_study(study).best_value == 0.5
    assert capsys.readouterr().err.count("journal.damaged") == 1


def test_replayed_epochs_are_counted_once() -> None:
    replay = lab.Replay([[0.1, 0.3], [0.2, 0.25]])
    assert [replay.train(0, 1), replay.train(0, 2), replay.train(1, 1)] == [0.1, 0.3, 0.2]
    assert replay.epochs == 3 and replay.accuracy(1) == 0.25
    table = replay.table("halving")
    assert table["state"].tolist() == ["complete"] * 2 + ["pruned"]
    assert replay.rank_correlation().tolist() == pytest.approx([-1, 1])


def test_halving_finds_the_best_of_the_recorded_grid_only() -> None:
    for replay, is_best in ((lab.Replay.of_grid(), True), (lab.Replay.of_random_trials(), False)):
        accuracy = replay.accuracy(successive_halving(replay.trials, replay.train))
        assert (accuracy == replay.curves[:, -1].max()) == is_best
    assert replay.rank_correlation()[1] < 0.3  # the random trials' first epoch misleads


@pytest.mark.parametrize("slow", [1, 4])
def test_without_barriers_the_first_training_completes_earlier(slow: int) -> None:
    replay, speeds = lab.Replay.of_grid(), [1.0] * 7 + [slow]
    barrier, asha = (
        simulate_workers(promote, replay, speeds, waits=waits) for waits in (True, False)
    )
    assert barrier["round"].value_counts().tolist() == [36, 12, 4]
    for round_ in (2, 3):  # it begins when the one before has ended
        before, after = (barrier[barrier["round"] == x] for x in (round_ - 1, round_))
        assert after["begin"].min() >= before["end"].max()
    first = [table.loc[table["round"] == 3, "end"].min() for table in (asha, barrier)]
    assert first[0] < first[1]
    for table in (barrier, asha):  # a worker trains one trial at a time
        for _, rows in table.sort_values("begin").groupby("worker"):
            assert (rows["begin"].to_numpy()[1:] >= rows["end"].to_numpy()[:-1]).all()
