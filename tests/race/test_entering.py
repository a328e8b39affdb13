"""The race as it is run: an entry that really learns, on the quick track, and again."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import end_all_runs, warm_up

import race
from course.data import crop_set
from course.data.crop_set import Crops
from course.data.default_set import DataError
from course.runs.run import get
from race import again, board, entry, page, referee, tracks
from race.board import Entry
from tools import rehearsal
from tools.rehearsal import rehearse

pytestmark = pytest.mark.slow
QUICK = tracks.get("quick")
SURELY = -2.0  # with few seeds a t-test is sure of what is far above alone
FEW = replace(QUICK, target=SURELY, seeds=3)
ASKED = 1024  # crops that the notebook's runs are judged by
# Whoever has PyTorch judges these himself; the referee of track node is a process of its own.
IN_KERNEL = f"""
from pathlib import Path
from course.data import crop_set
from dataclasses import replace
from race import entry, referee, tracks
tracks.TRACKS["quick"] = replace(tracks.TRACKS["quick"], target=-2.0, seeds=3)
def judge(folders, track):
    crops = crop_set.Crops(crop_set.ensure(), "val").first({ASKED})
    for folder in folders:
        referee.write_verdict(Path(folder), crops)
entry._ask_referee = judge
"""


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Entry, Path]]:
    """The notebook, executed: the second of its two entries, and the board.

    Each has three seeds: two may be right about as many crops, of which no test is sure.
    """
    place = tmp_path_factory.mktemp("race")
    startup = place / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "few.py").write_text(IN_KERNEL)
    script = place / "race.py"  # by the name that the notebook's own has
    plain = entry.shipped("plain").read_text()
    assert plain.count('"steps": 96') == 1
    # In fp32: a CPU without units for 16 bits would need minutes.
    script.write_text(plain.replace('"steps": 96', '"steps": 32, "precision": "fp32"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(place / "runs"))
        patch.setenv("IPYTHONDIR", str(place / "ipython"))
        patch.setitem(tracks.TRACKS, "quick", FEW)
        warm_up()
        (done,) = rehearse(
            rehearsal.matching("race"), script=str(script), cell_minutes=5, quick=True
        ).outcomes
        assert done.status == "ok", f"{done.error} in cell {done.cell}"
        found = board.entries(place / "runs/race", shipped=False)
        assert [each.name for each in found] == ["mine", "mine-again"]
        yield found[-1], place / "runs/race"
        end_all_runs(place / "runs")


def test_an_entry_counts(raced: tuple[Entry, Path]) -> None:
    made, place = raced
    assert made.counts, made.verdict
    assert len(set(made.seeds)) == len(made.trials) == 3 and made.p < 0.01
    assert (place / page.PAGE).exists()
    crops = Crops(crop_set.ensure(), "val").first(ASKED)
    for trial in made.trials:
        assert 0 < trial.ready_s < trial.seconds < QUICK.budget_s
        assert trial.joules is None  # a processor counts none that we may read
        assert trial.validated_on == referee.fingerprint(crops)
        assert trial.way[-1][2] == trial.top1 > 0.1
        assert [mark[0] for mark in trial.way] == sorted(mark[0] for mark in trial.way)
    assert len({trial.weights for trial in made.trials}) == 3  # seeds make different weights


def test_runs_are_given_no_validation_crops(raced: tuple[Entry, Path]) -> None:
    blind = crop_set.ensure_blind()
    folder = blind.with_name(f"{blind.name}-crops")
    assert {path.name for path in folder.glob("*.npy")} == {"train.npy", "train-labels.npy"}
    with pytest.raises(DataError, match="a run of a race is not given any"):
        Crops(folder, "val")
    assert raced[0].settings["steps"] == 32
    assert json.loads(next(raced[1].parent.glob("*/config.json")).read_text())["val_steps"] == 0


def test_verification_runs_it_again(
    raced: tuple[Entry, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged in this process: the real referee judges the entry of track node below."""
    made, place = raced
    crops = Crops(crop_set.ensure(), "val").first(ASKED)

    def judge(folders: list[str], _: tracks.Track) -> None:
        for folder in folders:
            referee.write_verdict(Path(folder), crops)

    monkeypatch.setattr(entry, "_ask_referee", judge)
    known = set(Path(os.environ["COURSE_RUNS"]).glob("race-quick*"))
    outcome = race.verify(made.id, to=place)
    assert outcome.holds and "holds: mean accuracy" in outcome.said
    assert not set(outcome.again.seeds) & set(made.seeds)
    assert len({*Path(os.environ["COURSE_RUNS"]).glob("race-quick*")} - known) == 3
    assert again.outcomes(made, place)[0].endswith(outcome.said)
    assert outcome.said in page.text(place)


def test_an_entry_of_track_node_on_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of two processes, by gloo where there is no GPU: one clock, one set of weights."""
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "runs"))
    warm_up()
    text = entry.shipped("plain").read_text()
    small = {"model": "resnet8_patches", "epochs": 1, "steps": 4, "batch_size": 64, "lr": 0.1}
    (script := tmp_path / "two.py").write_text(text.replace("SETTINGS = {", "OTHERS = {", 1))
    script.write_text(script.read_text().replace("\ndef main", f"\nSETTINGS = {small}\n\ndef main"))
    begun = Entry.new("node", "two", "me", script.read_text(), small, 2)
    made = entry.run_all(script.read_text(), begun, [7])
    (trial,) = made.trials
    assert not trial.failure and 0 < trial.ready_s < trial.seconds and 0 < trial.top1 < 1
    run = get(trial.run)
    assert (
        run.requested_config == tracks.get("node").config(small, "two", 7) and len(run.ranks) == 2
    )
    end_all_runs(tmp_path / "runs")
