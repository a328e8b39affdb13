"""The race as it is run: an entry that really learns, on the quick track, and again."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import end_all_runs

from course import race
from course.data import crop_set
from course.data.crop_set import Crops
from course.data.default_set import DataError
from course.race import again, board, entry, page, referee, tracks
from course.race.board import Entry

pytestmark = pytest.mark.slow
QUICK = tracks.get("quick")


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Entry, Path]]:
    """An entry that really learned, with three seeds, on a board of its own."""
    place = tmp_path_factory.mktemp("race")
    script = place / "short.py"
    plain = entry.shipped("plain").read_text()
    assert plain.count('"steps": 96') == 1
    script.write_text(plain.replace('"steps": 96', '"steps": 48'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(place / "runs"))
        patch.setitem(tracks.TRACKS, "quick", replace(QUICK, target=0.05))
        made = race.enter("quick", script, to=place / "board", by="a test")
        yield made, place / "board"
        end_all_runs(place / "runs")


def test_an_entry_counts(raced: tuple[Entry, Path]) -> None:
    made, place = raced
    assert made.counts, made.verdict
    assert len(set(made.seeds)) == len(made.trials) == 3 and made.p < 0.01
    assert board.entries(place, shipped=False) == [made]
    crops = Crops(crop_set.ensure(), "val")
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
    assert raced[0].settings["steps"] == 48
    assert (
        json.loads((raced[1].parent / "runs").glob("*/config.json").__next__().read_text())[
            "val_steps"
        ]
        == 0
    )


def test_verification_runs_it_again(
    raced: tuple[Entry, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, place = raced
    known = set(Path(os.environ["COURSE_RUNS"]).glob("race-quick*"))
    outcome = race.verify("short", to=place)
    assert outcome.holds and "holds: mean accuracy" in outcome.said
    assert not set(outcome.again.seeds) & set(made.seeds)
    assert len({*Path(os.environ["COURSE_RUNS"]).glob("race-quick*")} - known) == 3
    assert again.outcomes(board.place_of(made, place))[0].endswith(outcome.said)
    assert outcome.said in page.text(place)
