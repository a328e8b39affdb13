"""Enter the race on the quick track with a script that learns, and verify the entry."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import end_all_runs

import race
from course.data import crop_set
from course.data.crop_set import Crops
from course.runs.run import get
from race import board, page, referee, submission, tracks
from race.entries import Entry
from race.verification import read_outcomes
from tools import notebooks

pytestmark = pytest.mark.slow
# With two seeds a t-test is only sure about values far above the target.
EASY = replace(tracks.find_track("quick"), target=-2.0, seeds=2)
CROPS = 1024  # on which the notebook's runs are judged, in the kernel's process
IN_KERNEL = f"""
from course.data import crop_set
from dataclasses import replace
from race import submission, referee, tracks
tracks.TRACKS["quick"] = replace(tracks.TRACKS["quick"], target=-2.0, seeds=2)
def judge(folders, track):
    crops = crop_set.Crops(crop_set.ensure(), "val").first({CROPS})
    for folder in folders:
        referee.write_verdict(folder, crops)
submission.judge = judge
"""


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Entry, Path]]:
    """Execute the notebook; return the second of its two entries, and the board."""
    place = tmp_path_factory.mktemp("race")
    startup = place / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "few.py").write_text(IN_KERNEL)
    script = place / "race.py"  # the notebook's script has this name
    plain = submission.course_script("plain").read_text()
    assert plain.count('"steps": 96') == 1
    # In fp32: a CPU without 16-bit units would need minutes.
    script.write_text(plain.replace('"steps": 96', '"steps": 16, "precision": "fp32"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(place / "runs"))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        patch.setitem(tracks.TRACKS, "quick", EASY)
        (outcome,) = notebooks.execute_all(
            notebooks.matching("race"), script=str(script), cell_minutes=5, quick=True
        )
        assert outcome.status == "ok", f"{outcome.error} in cell {outcome.cell}"
        entries = board.read_entries(place / "runs/race", recorded=False)
        assert [entry.name for entry in entries] == ["mine", "mine-again"]
        yield entries[-1], place / "runs/race"
        end_all_runs(place / "runs")


def spread(entry: Entry) -> bool:
    """Whether accuracies differ: if two seeds are equally accurate, nothing is certain (p = 1)."""
    return len({trial.top1 for trial in entry.trials}) > 1


def test_an_entry_counts(raced: tuple[Entry, Path]) -> None:
    entry, folder = raced
    assert entry.counts is (entry.p < 0.01) is spread(entry), entry.verdict
    assert len(set(entry.seeds)) == len(entry.trials) == 2
    assert (folder / page.PAGE).exists()
    crops = Crops(crop_set.ensure(), "val").first(CROPS)
    for trial in entry.trials:
        assert 0 < trial.ready_s < trial.seconds < EASY.budget_s
        assert trial.joules is None  # a CPU has no counter that we may read
        assert trial.validated_on == referee.fingerprint(crops)
        assert trial.way[-1][2] == trial.top1 > 0.1
        assert [mark[0] for mark in trial.way] == sorted(mark[0] for mark in trial.way)
    assert len({trial.weights for trial in entry.trials}) == 2  # seeds change the weights


def test_verification_runs_it_again(
    raced: tuple[Entry, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, folder = raced
    crops = Crops(crop_set.ensure(), "val").first(CROPS)

    def judge(folders: list[Path], _: tracks.Track) -> None:
        for run in folders:
            referee.write_verdict(run, crops)

    monkeypatch.setattr(submission, "judge", judge)
    runs = Path(os.environ["COURSE_RUNS"])
    before = set(runs.glob("race-quick*"))
    outcome = race.verify(entry.id, to=folder)
    is_slower = "was the machine busy?" in outcome.summary
    assert outcome.holds is (spread(outcome.repeated) and not is_slower), outcome.summary
    assert "confirmed: " in outcome.summary and "mean accuracy" in outcome.summary
    assert not set(outcome.repeated.seeds) & set(entry.seeds)
    assert len(set(runs.glob("race-quick*")) - before) == 2
    assert read_outcomes(entry, folder)[0].endswith(outcome.summary)
    assert outcome.summary in page.render_page(folder)


def test_an_entry_of_track_node_on_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks have one clock and one set of weights; the real referee judges them."""
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "runs"))
    small = {"model": "resnet8_patches", "epochs": 1, "steps": 4, "batch_size": 64, "lr": 0.1}
    script = submission.course_script("plain").read_text().replace("SETTINGS = {", "OTHERS = {", 1)
    script = script.replace("\ndef main", f"\nSETTINGS = {small}\n\ndef main")
    entry = Entry.new("node", "two", "me", script, small, 2)
    (trial,) = submission.run_all(script, entry, [7]).trials
    assert not trial.failure and 0 < trial.ready_s < trial.seconds and 0 < trial.top1 < 1
    run, config = get(trial.run), tracks.find_track("node").config(small, "two", 7)
    assert run.requested_config == config and len(run.ranks) == 2
    end_all_runs(tmp_path / "runs")
