"""Learners enter the race with a shared data set that they can only read."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from race_helpers import as_user

from course.data import crop_set
from course.data.crop_set import Crops
from race.submission import hidden_validation_crops

LEARNER = 2001
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make an instructor's crops, also without validation, as `course data --as crops` does."""
    crops, training = crop_set.ensure(), crop_set.ensure_blind()
    place = Path(tempfile.mkdtemp(prefix="share-", dir="/tmp"))  # not in a folder of root
    place.chmod(0o755)
    (place / "default-set").mkdir()
    shutil.copytree(crops, place / "default-set-crops")
    shutil.copytree(f"{training}-crops", place / "default-set-blind-crops")
    monkeypatch.setenv("COURSE_DATA", str(place / "default-set"))
    yield place
    shutil.rmtree(place)


def check_crops() -> None:
    """Check that a run of the race finds training crops, and no others."""
    assert len(Crops(crop_set.ensure(), "val"))  # the class's crops, for the referee
    with hidden_validation_crops():
        root = crop_set.ensure()
        assert len(Crops(root, "train"))
        with pytest.raises(crop_set.DataError, match="is not given any"):
            Crops(root, "val")


def test_learners_race_with_data_that_they_can_only_read(share: Path) -> None:
    assert as_user(LEARNER, check_crops) == ""
