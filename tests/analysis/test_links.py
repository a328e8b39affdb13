"""All-reduces measured by size between two processes."""

from pathlib import Path

import pytest

from course.analysis.links import measure_link


@pytest.mark.slow
def test_a_link_is_measured_in_a_job_of_two_processes(runs_root: Path) -> None:
    table = measure_link()
    assert [*table["bytes"]] == [4**power for power in range(5, 14)] and set(table["ranks"]) == {2}
    assert (table["low"] <= table["seconds"]).all() and (table["seconds"] <= table["high"]).all()
    assert (table["seconds"] > 0).all()
