"""The recorded rungs are those of the ladder, and their MFU is what a report shows."""

import pytest

from course import recorded_runs
from course.analysis.mfu import mfu
from labs import gpt as lab
from labs.gpt.lab import RUNGS


def test_the_recorded_rungs_are_those_of_the_ladder_with_a_reports_mfu() -> None:
    table = lab.recorded_ladder()
    assert [*table.index] == [*RUNGS, "gpt_fused, batch 64"]
    expected = [100 * mfu(run) for run in recorded_runs("nvidia-h200", "gpt")]
    assert table["mfu_percent"].tolist() == pytest.approx(expected)
    assert table["machine"].nunique() == 1
