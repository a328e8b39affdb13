"""A data set that a class shares, and may only read: everybody races nevertheless."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from race_helpers import as_somebody

from course.data import crop_set
from course.data.crop_set import Crops
from race.entry import _blind

LEARNER = 2001
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may be somebody else")


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A set that is the instructor's, with its crops, and a learner's home beside it."""
    made = crop_set.ensure()
    place = Path(tempfile.mkdtemp(prefix="share-", dir="/tmp"))  # not in a folder of root alone
    place.chmod(0o755)
    (place / "default-set").mkdir()
    (place / "home").mkdir()
    os.chown(place / "home", LEARNER, LEARNER)
    shutil.copytree(made, place / "default-set-crops")
    monkeypatch.setenv("COURSE_DATA", str(place / "default-set"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "home"))
    yield place
    shutil.rmtree(place)


def race_blind(home: Path) -> None:
    """What a run of a race finds: training crops in this folder, and no others."""
    assert len(Crops(crop_set.ensure(), "val"))  # the class's, for the referee
    with _blind():
        root = crop_set.ensure()
        assert root.is_relative_to(home) and len(Crops(root, "train"))
        with pytest.raises(crop_set.DataError, match="is not given any"):
            Crops(root, "val")


def test_learners_race_with_data_that_they_may_only_read(share: Path) -> None:
    assert as_somebody(LEARNER, lambda: race_blind(share / "home")) == ""


def test_crops_that_are_not_shared_lie_in_ones_cache(share: Path) -> None:
    shutil.rmtree(share / "default-set-crops")
    where = share / "home/make-training-fast/default-set-crops"

    def look() -> None:
        assert crop_set.default_root() == where

    assert as_somebody(LEARNER, look) == ""
    assert crop_set.default_root() == share / "default-set-crops"  # whoever may write there does


def test_what_an_instructor_made_blind_is_shared(share: Path) -> None:
    made = crop_set.ensure_blind()

    def look() -> None:
        assert crop_set.ensure_blind() == made == share / "default-set-blind"

    assert as_somebody(LEARNER, look) == ""
