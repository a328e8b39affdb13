"""The race: which entries count, ways to fail, boards with many writers, the page."""

import json
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from job_helpers import SCRIPTS, prepared, train_together
from race_helpers import GOOD, entry_of, posted
from typer.testing import CliRunner

import race
from course.__main__ import app
from course.data import crop_set
from course.data.crop_set import Crops
from course.jobs.launch import wait
from course.runs.run import Run
from course.runs.shared_files import user_name
from race import board, page, referee, submission
from race.entries import Entry, Trial, ranked
from race.figures import plot_accuracies
from race.supervised_clock import RESULT
from race.tracks import find_track

LIGHT = SCRIPTS / "race_light.py"
QUICK = find_track("quick")
FAILURES = {  # of the light script, by the entry's name
    "crashes": "failed: RuntimeError: this script was not finished",
    "diverges": "training diverged: 10.weight has values that are not finite",
    "other_shapes": "the weights are not those of resnet8_patches, which SETTINGS names",
    "pickles": "has more than tensors, and nothing in it is run",
    "leaves_none": "it left no weights: call run.save_weights",
    "learns_nothing": "",
    "own_network": "",
}


def prepare(folder: Path, name: str) -> Run:
    """Prepare a run of the light script."""
    script = LIGHT.read_text()
    config = QUICK.config(submission.read_settings(script, "quick"), name, seed=1)
    run = prepared(folder / name, script, config)
    request = json.loads((run.folder / "launch.json").read_text())
    (run.folder / "launch.json").write_text(json.dumps(request | submission.REQUEST))
    return run


@pytest.mark.slow
def test_failed_runs_and_networks_of_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = {name: prepare(tmp_path, name) for name in FAILURES}
    train_together(runs.values(), narrow=False, COURSE_DATA=str(crop_set.ensure_blind()))
    crops = Crops(crop_set.ensure(), "val").first(512)
    for name, run in runs.items():
        if name != "crashes":
            referee.write_verdict(run.folder, crops)
            (run.folder / RESULT).write_text('{"seconds": 0}')  # they had no supervisor
    assert not (tmp_path / "opened").exists()  # the pickled code did not run
    trials = {name: submission._trial(run, QUICK) for name, run in runs.items()}
    for name, words in FAILURES.items():
        assert words in trials[name].failure and bool(trials[name].failure) == bool(words)
    assert trials["own_network"].top1 < 0.25  # untrained, with a random seed
    wait([runs["own_network"]])
    progress = capsys.readouterr().out
    assert "[ok]" in progress and "steps" not in progress  # its script reports none
    constant = trials["learns_nothing"]
    assert len(constant.way) == 2 and constant.way[0][2] == constant.top1
    late = submission._trial(runs["learns_nothing"], replace(QUICK, budget_s=1e-6))
    assert "took" in late.failure and "the budget is 1e-06" in late.failure


@pytest.mark.parametrize(
    "accuracies, reason",
    [
        ([0.20, 0.21, 0.19], ""),
        ([0.151, 0.16, 0.145], "not significantly above the target of 15%"),
        ([0.17177, 0.18177, 0.18677], "(p = 0.0104; it must be less than 0.01)"),  # and not 0.01
        ([0.13, 0.14, 0.12], "is below the target of 15%"),
        ([0.9, 0.9], "only 2 of 3 runs are complete"),
        ([0.16, 0.16, 0.16], "not significantly above"),  # without a spread nothing is certain
    ],
)
def test_entries_that_count(accuracies: list[float], reason: str) -> None:
    entry = entry_of(accuracies)
    assert reason in entry.verdict and entry.counts == (not reason)


def test_an_entry_whose_seed_changes_nothing_fails() -> None:
    entry = entry_of(GOOD)
    trials = [replace(trial, weights=weights) for trial, weights in zip(entry.trials, "aba")]
    reason = "the seed changes nothing: two runs have the same weights"
    assert entry.counts and replace(entry, trials=tuple(trials)).failure == reason


def test_settings_and_arguments_that_are_refused(tmp_path: Path) -> None:
    for settings, words in (
        ({"seed": 3}, "the race decides"),
        ({"epochz": 4}, "did you mean 'epochs'"),
    ):
        with pytest.raises(ValueError, match=words):
            QUICK.config(settings, "x", 0)
    for script, words in (
        ("x = 1", "needs SETTINGS"),
        ('SETTINGS = {"gpu": {}}', "no 'quick'"),
    ):
        with pytest.raises(ValueError, match=words):
            submission.read_settings(script, "quick")
    for arguments, words in (
        ({"track": "fun"}, "choose quick, cpu, gpu, node"),
        ({"seeds": 2}, "needs 3 to 20"),
        ({"script": "nothing.py"}, "no script"),
    ):
        with pytest.raises(ValueError, match=words):
            race.enter(**{"track": "quick", "script": "plain", "to": tmp_path} | arguments)
    assert not [*tmp_path.rglob("*.py")]  # nothing was stored


def test_many_people_write_to_a_board_at_once(tmp_path: Path) -> None:
    counts: list[int] = []

    def write(number: int) -> None:
        for _ in range(5):
            posted(tmp_path, f"w{number}", "x = 1")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        counts.append(len(board.read_entries(tmp_path, recorded=False)))  # only complete ones
    entries = board.read_entries(tmp_path, recorded=False)
    assert len({entry.id for entry in entries}) == 30 and counts == sorted(counts)
    assert all(board.script_of(entry, tmp_path) == "x = 1" for entry in entries)


def test_boards_are_filtered_and_ranked(tmp_path: Path) -> None:
    slow = replace(entry_of(GOOD, "slow", "A GPU", joules=5.0), entered_at="2026-01-01")
    slow = posted(tmp_path, slow)
    four = posted(tmp_path, entry_of([*GOOD, 0.33], "four", "a CPU"))
    wrong = posted(tmp_path, entry_of([0.1] * 3, "wrong", "A GPU"))
    gpus = board.read_entries(tmp_path, machine="gpu", recorded=False)
    assert [entry.name for entry in gpus] == ["slow", "wrong"]
    assert ranked([four, slow, wrong]) == [slow, four]
    assert ranked([four, slow, wrong], "joules") == [slow]
    account = user_name(os.getuid())
    assert board.find_entry("four", tmp_path) == replace(four, owner=account)
    with pytest.raises(ValueError, match="no entry is called 'fun'"):
        board.find_entry("fun", tmp_path)
    text = json.dumps(asdict(slow) | {"new_field": 1})
    assert Entry.from_json(text, "quick", slow.id) == slow
    assert race.table("gpu", to=tmp_path, own_only=True).empty  # without the course's
    table = race.table("quick", to=tmp_path)
    assert [*table[table["by"] == "me"]["entry"]] == ["slow", "four", "wrong"]
    assert "joules" in race.plot_accuracy("quick", over="joules", to=tmp_path).alt
    missed = replace(slow, trials=tuple(replace(trial, top1=0.1) for trial in slow.trials))
    failed = replace(slow, trials=(Trial(1, "run", failure="it crashed"),))
    assert {*plot_accuracies([missed, failed], 0.15)} == {"seconds", "joules"}
    assert plot_accuracies([failed], 0.15) == {}


@pytest.mark.slow
def test_the_page_is_one_file(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        entry = entry_of([0.3, 0.31, 0.32 + number / 100], name)
        posted(tmp_path, entry, f"SETTINGS = {{'lr': {number}}}\n")
    path = race.board_page(tmp_path, machine="test machine", live=True)
    text = path.read_text()
    assert 'http-equiv="refresh"' in text and "No board of joules" in text
    assert "-SETTINGS = {&#39;lr&#39;: 0}" in text and "+SETTINGS = {&#39;lr&#39;: 1}" in text
    assert 'src="data:image/png;base64,' in text and "prefers-color-scheme: dark" in text
    assert "http-equiv" not in page.render_page(tmp_path)  # it has the recorded entries, too
    for result in race.published_results().itertuples():
        assert result.time in text and result.source in text


@pytest.mark.slow
def test_the_command_shows_a_board(tmp_path: Path) -> None:
    entry = posted(tmp_path, "one")
    result = CliRunner().invoke(app, ["race", "quick", "--board", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert entry.id in [row["id"] for row in json.loads(result.stdout)]
    assert (tmp_path / page.PAGE).exists()
    for words, message in (
        (["quick", "--script", "a.py", "--entry", "plain"], "choose one"),
        (["mars", "--board", str(tmp_path)], "no track 'mars': choose quick, cpu, gpu, node"),
    ):
        result = CliRunner().invoke(app, ["race", *words])
        assert isinstance(result.exception, ValueError) and message in str(result.exception)
