"""Tests of lab 4.4: searches, pruning, tables, figures, and wrong requests."""

import json
import math
import shutil
import statistics
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from job_helpers import (
    SCRIPTS,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    prepared,
)
from optuna.trial import TrialState

from course.config import rung
from course.data import crop_set
from course.data.crop_set import Recipe
from course.data.loader import image_sets, normalised
from course.jobs.launch import JobError
from course.jobs.slurm_partitions import Partition
from course.runs.record import Record, write_record
from course.runs.run import FOLDER_VARIABLE, Run, record_of
from course.training import models, trials
from course.training.recorder import recording
from course.training.trials import ABOUT, FOLDER, JOURNAL
from labs import day4_4_search as lab
from labs.day4_4_search import array, holdout, trial_queue
from labs.day4_4_search.configs import SEARCHES, SPACE, recorded_search, search_config
from labs.day4_4_search.space import contains, distributions

LIGHT = {"script": SCRIPTS / "trial_light.py"}
CONFIG = rung("baseline", quick=True, lr=0.5)
RATES = {"lr": (0.01, 10.0, "log")}


def test_a_search_continues(runs_root: Path) -> None:
    two_trials = lab.search("tpe", RATES, CONFIG, trials=2, **LIGHT)
    first_runs = two_trials.runs
    assert first_runs[0].launched["trial"]["params"]["lr"] == 0.5  # the config's value comes first
    three_trials = lab.search("tpe", RATES, CONFIG, trials=3, **LIGHT)
    assert (
        three_trials.folder == two_trials.folder
        and three_trials.runs[:2] == first_runs
        and len(three_trials.runs) == 3
    )
    table = lab.trials_table(three_trials)
    assert table["state"].tolist() == ["complete"] * 3
    assert three_trials.best.record.val_top1 == table["val_top1"].max()
    curve = lab.progress(table)
    assert curve["best"].tolist() == table["val_top1"].cummax().tolist()
    with pytest.raises(ValueError, match="3 complete trials: expected at least 4"):
        lab.field_importance(three_trials)


def test_an_accident_is_repeated_and_a_failure_is_not(runs_root: Path) -> None:
    search = lab.search("random", RATES, CONFIG, trials=1, **LIGHT)

    def begin(plan) -> Run:  # noqa: ANN001
        folder = runs_root / f"by-hand-{plan.config.rung}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(asdict(plan.config)))
        (folder / "launch.json").write_text(json.dumps(plan.request))
        return Run(folder)

    def ends(status: str, error: str) -> Run:
        run = trial_queue.take(search.folder, 4, begin)
        write_record(run.folder, record_of(run, {"status": status, "error": error}))
        trial_queue.finish(search.folder, run)
        trial_queue.finish(search.folder, run)  # both a worker and its supervisor may call it
        return run

    first = ends("lost", "Slurm: NODE_FAIL, exit code 0:0, on node1")
    second = ends("failed", "Slurm: FAILED, exit code 0:9, on node1")  # its worker was killed
    third = ends("failed", "ValueError: mine")
    params = [run.launched["trial"]["params"] for run in (first, second, third)]
    assert params[0] == params[1] == params[2]
    fourth = ends("failed", "ValueError: mine")
    assert fourth.launched["trial"]["params"] != params[0]
    last = ends("lost", "")
    assert trial_queue.take(search.folder, 4, begin) is not None
    assert trial_queue.take(search.folder, 4, begin) is None
    assert last.launched["trial"]["number"] == 5


@pytest.mark.parametrize(
    ("status", "error", "is_repeated"),
    [
        ("lost", "the process was killed by SIGKILL", True),
        ("lost", "Slurm: NODE_FAIL, exit code 0:0, on node1", True),
        ("lost", "Slurm: PREEMPTED, exit code 0:0, on node1", True),
        ("lost", "Slurm: BOOT_FAIL, exit code 0:0, on node1", True),
        ("failed", "Slurm: FAILED, exit code 0:9, on node1", True),
        ("timeout", "Slurm: TIMEOUT, exit code 0:0, on node1", True),  # the job's limit
        ("timeout", "Slurm: DEADLINE, exit code 0:0, on node1", False),
        ("timeout", "still running after its 60 minutes", False),  # the trial's own
        ("oom", "Slurm: OUT_OF_MEMORY, exit code 0:125, on node1", False),
        ("cancelled", "Slurm: CANCELLED by 1000, exit code 0:0, on node1", False),
        ("cancelled", "cancelled on request", False),
        ("failed", "ValueError: mine", False),
    ],
)
def test_accidents_are_repeated(status: str, error: str, is_repeated: bool) -> None:
    assert trial_queue.is_accident(Record(status, error=error)) == is_repeated


def test_a_job_of_an_array_has_time_for_its_share_of_trials(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = lab.search("random", RATES, CONFIG, trials=1, time_min=7, **LIGHT)
    known = len(search.runs)
    for longest, expected_min in (
        (600, 21),
        (math.inf, 21),
        (17, 15),
        (9, 7),
    ):  # Slurm's is 2 longer
        place, trial_min = array.job_time(
            search.folder, 2.5, [Partition("all", longest, "gpu:4", is_default=True)]
        )
        assert (place.time_min, trial_min) == (expected_min, 7)
    assert array.job_time(search.folder, 2.5, [])[0].time_min == 21
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "1")
    array.work(str(search.folder), str(runs_root), 2, spare_min=-2)  # its time is over
    assert len(search.runs) == known == 1


@pytest.mark.parametrize(
    ("sampler", "space", "message"),
    [
        ("best", RATES, "no sampler 'best': choose grid, random, tpe"),
        ("tpe", {}, r"space=\{\}: name the fields to search"),
        ("tpe", {"learning_rate": [0.1]}, "no setting 'learning_rate'"),
        ("tpe", {"lr": (3.0, 0.1)}, r"lr=\(3.0, 0.1\): the least must be below the most"),
        ("tpe", {"lr": (0, 1.0, "log")}, "the least must be above 0, and below the most"),
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
        ({"pruner": "mean"}, "no pruner 'mean': choose none, median, hyperband"),
        ({"site": "recorded-nvidia-h200"}, "starts no jobs"),
        ({"trials": None}, "trials=None: expected 1 or more"),
        ({"trials": 0}, "trials=0: expected 1 or more"),
        ({"workers": 2}, "this machine computes one job at a time"),
        ({"config": replace(CONFIG, val_steps=0)}, "val_steps=0"),
        ({"name": "../../x"}, "expected letters, digits, _ . and -"),
        ({"name": "-a"}, "expected letters, digits, _ . and -"),
        ({"name": "a b"}, "expected letters, digits, _ . and -"),
    ],
)
def test_wrong_settings_are_refused(runs_root: Path, settings: dict, message: str) -> None:
    arguments = {"config": CONFIG, "trials": 2} | LIGHT | settings
    with pytest.raises(ValueError, match=message):
        lab.search("tpe", RATES, **arguments)
    assert not [*runs_root.glob("*/launch.json")]


def test_a_journal_of_another_search_is_refused(runs_root: Path) -> None:
    lab.search("random", RATES, CONFIG, trials=1, name="mine", **LIGHT)
    with pytest.raises(ValueError, match="a different search has this name .space"):
        lab.search("random", {"lr": (0.1, 1.0)}, CONFIG, trials=1, name="mine", **LIGHT)


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


def test_a_trial_below_the_median_ends_and_another_goes_on(study: Path) -> None:
    root = study.parent.parent
    for value, goes_on in ((0.34, False), (0.36, True)):
        number = trials.open_study(study).ask().number
        trial_fields = {"study": "one", "number": number}
        assert trials.report(root, trial_fields, 1, value) == ""  # the first epoch is too early
        reason = trials.report(root, trial_fields, 2, value)
        assert (reason == "") == goes_on
    assert trials.report(root, {"study": "one", "number": 4}, 3, 0.3).startswith(
        "val_top1 was 0.300, and 2 of 4 others had more"
    )


def test_pruning_ends_the_job_which_keeps_all_that_it_measured(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = trials.open_study(study).ask().number
    run = prepared(study.parent.parent / "run", "", rung("baseline", epochs=6))
    launched = run.launched | {"trial": {"study": "one", "number": number}}
    (run.folder / "launch.json").write_text(json.dumps(launched))
    monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
    after = []
    with recording() as recorder:
        for _ in range(6):
            recorder.epoch(val_loss=1.0, val_top1=0.25)
            after.append(recorder)
    assert len(after) == 1  # the second epoch was its last
    assert run.status == "cancelled" and len(run.record.epochs) == 2
    error = "pruned after epoch 2 of 6: val_top1 was 0.250, and 3 of 4 others had more by then"
    assert run.record.error == error and trial_queue.is_pruned(run.record)
    trial_queue.finish(study, run)
    assert trials.open_study(study).trials[number].state.name == "PRUNED"


def test_the_mean_best_of_some_values() -> None:
    values = [0.3, 0.1, 0.4, 0.15, 0.9]
    for count in range(1, 6):
        best = [max(chosen) for chosen in combinations(values, count)]
        assert lab.best_of(values, count) == pytest.approx(statistics.mean(best))


def test_the_check_of_a_learners_function() -> None:
    random = np.random.default_rng(0)

    def draw(values: list[float], count: int) -> float:
        draws = [max(random.choice(values, count, replace=False)) for _ in range(4000)]
        return float(np.mean(draws))

    assert lab.check_best_of(draw).startswith("correct")
    for function, message in {
        (lambda values, n: np.mean(random.choice(values, 4000))): "not of their best",
        (lambda values, n: max(values)): "the mean best of 1",
        (lambda values, n: np.mean(values)): "the mean of the values drawn",
        (lambda values, n: sorted(values)[-n]): "not yet",
        (lambda values: 1): "it raises TypeError",
        (lambda values, n: ...): "it raises TypeError",
    }.items():
        assert message in lab.check_best_of(function)


def test_costs_gains_and_progress() -> None:
    table = pd.DataFrame(
        {
            "search": "a",
            "trial": range(5),
            "state": ["lost", "complete", "pruned", "complete", "complete"],
            "val_top1": [np.nan, 0.4, 0.2, 0.5, 0.7],
            "machine": "m",
            "lr": [1.0, 2.0, 4.0, 1.0, 3.0],
            "device_s": 720.0,
            "joules": 1e3,
        }
    )
    (row,) = lab.cost_table(table).itertuples()
    assert (row.trials, row.pruned, row.best, row.device_h, row.kilojoules) == (5, 1, 0.7, 1, 5)
    assert row.gain == pytest.approx(0.2)  # over trial 3, which repeats trial 0
    assert lab.cost_table(table.drop(index=3))["gain"].isna().all()
    assert lab.cost_table(table.drop(index=0))["gain"].isna().all()  # its values are unknown
    progress = lab.progress(table)
    assert progress["best"].tolist()[1:] == [0.4, 0.4, 0.5, 0.7]
    assert progress["joules"].iloc[-1] == 5e3


def test_trials_that_fail_before_they_begin_are_reported(runs_root: Path) -> None:
    search = lab.search("random", RATES, CONFIG, trials=1, name="dies", **LIGHT)
    for run in search.runs:  # a study of which nothing but its folder is left
        shutil.rmtree(run.folder)
    (search.folder / JOURNAL).unlink()
    study = trials.open_study(search.folder)
    for _ in range(3):
        study.tell(study.ask(), state=TrialState.FAIL)
    with pytest.raises(JobError, match="the first 3 trials of dies failed. None of them began"):
        lab.search("random", RATES, CONFIG, trials=4, name="dies", **LIGHT)
    trial = study.ask()
    trial.set_user_attr("run", "gone")
    study.tell(trial, state=TrialState.FAIL)
    with pytest.raises(JobError, match="the first 4 trials of dies failed. gone"):
        lab.search("random", RATES, CONFIG, trials=9, name="dies", **LIGHT)


def test_figures_contain_the_values() -> None:
    table = pd.DataFrame(
        {
            "search": "a",
            "trial": range(3),
            "seed": range(3),
            "lr": [0.01, 0.1, 1.0],
            "state": ["complete", "pruned", "complete"],
            "val_top1": [0.5, 0.2, 0.6],
            "test_top1": [0.5, 0.3, 0.52],
            "device_s": [2.0, 1.0, 2.0],
            "joules": np.nan,
            "machine": "m",
        }
    )
    by_epoch = table.loc[[0, 0, 1, 2, 2]].assign(epoch=[1, 2, 1, 1, 2])
    values = table["val_top1"].tolist()
    for picture, words in (
        (lab.plot_curves(by_epoch), "a: 1 of 3 pruned"),
        (lab.plot_progress(lab.progress(table)), "device seconds, added up; a: from 0.5"),
        (lab.plot_by_field(table.assign(val_top1=0.6), ["lr"]), "three best: 0.01: 0.6, "),
        (lab.plot_chance(values, "m"), "the best: 2: 0.6; "),
        (lab.plot_holdout(table), "chosen for its validation: from 0.6 to 0.52"),
    ):
        assert words in picture.alt
    assert len(lab.plot_progress(lab.progress(table)).axes) == 1  # no joules, no panel


def test_recorded_searches_are_valid() -> None:
    for name in SEARCHES:
        arguments = recorded_search(name)
        assert distributions(arguments["space"], arguments["config"])
    assert contains(SPACE, vars(search_config()))
    assert not contains(SPACE, vars(search_config()) | {"lr": 20.0})


def test_holdout_crops_are_those_that_do_not_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = crop_set.ensure(tmp_path / "crops", Recipe(train=64, val=48))
    monkeypatch.setattr(crop_set, "ensure", lambda: folder)
    holdout._crops.cache_clear()
    settings = {"batch_size": 16, "steps": 4, "val_images": 20, "model": "resnet18", "lr_warmup": 1}
    config = replace(search_config(), **settings, seed=3)
    run = prepared(tmp_path / "run", "", config)
    indices, used = holdout.holdout_indices(config).tolist(), image_sets(config).val.indices[:16]
    assert len(indices) == 48 - 16 and sorted(indices + used) == [*range(48)]  # val_steps=1
    with pytest.raises(ValueError, match="has no weights.pt"):
        holdout.holdout_accuracy(run)
    crops = crop_set.Crops(folder, "val")
    model = models.create("resnet18", len(crops.classes))
    torch.save(model.state_dict(), run.folder / "weights.pt")
    with torch.no_grad():
        scores = model.eval()(normalised(crops.images[indices]))
    expected = (scores.argmax(dim=1) == crops.labels[indices]).float().mean().item()
    assert holdout.holdout_accuracy(run) == pytest.approx(expected)
    (run.folder / "weights.pt").unlink()
    assert holdout.holdout_accuracy(run) == pytest.approx(expected)  # it is stored
    holdout._crops.cache_clear()
