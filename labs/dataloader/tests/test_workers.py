"""The search for the fewest workers: right and wrong answers; NUMA nodes; sizes of the trials."""

import math
import os
import sys
from bisect import bisect_left
from pathlib import Path

import pytest

from course.config import rung
from labs.dataloader import lab, loading, numa, verify


def _bisect(speed, counts, target):
    place = bisect_left(counts, target, key=speed)
    return counts[place] if place < len(counts) else None


def test_an_unusual_right_answer_passes() -> None:
    assert "nvidia-h200" in verify.check_answers(_bisect)
    assert "at most 5 runs" in verify.check_calls(_bisect)


def _search(*, last="counts[high]", unreachable=True, enough=">=", up="middle + 1", twice=False):
    """Return a search that differs from the solution in one place."""
    lines = [
        "def search(speed, counts, target):",
        f"    if {unreachable} and speed(counts[-1]) < target: return None",
        "    low, high = 0, len(counts) - 1",
        "    while low < high:",
        "        middle = (low + high) // 2",
        f"        if {twice}: speed(counts[middle])",
        f"        if speed(counts[middle]) {enough} target: high = middle",
        f"        else: low = {up}",
        f"    return {last}",
    ]
    exec("\n".join(lines), scope := {})
    return scope["search"]


def _one_by_one(speed, counts, target):
    return next((count for count in counts if speed(count) >= target), None)


def _by_position(speed, counts, target):
    return None if speed(len(counts) - 1) < target else counts[-1]


@pytest.mark.parametrize(
    ("search", "hint"),
    [
        (_search(last="high"), "expected 16: 16 reach 4,543 images/s.*a position instead"),
        (_search(unreachable=False), "16, expected None: even 16 reach only 4,543"),
        (_search(enough=">"), "expected 7: 7 reach 3,500 images/s, 6 only 3,000"),
        (_search(up="middle"), "called 50 times .* each round make the range smaller"),
        (_by_position, r"speed\(3\) was called, which is not in counts"),
        (_search(twice=True), "was called 2 times: every call is a run"),
        (_one_by_one, "took 6 runs, expected at most 5: try the middle"),
    ],
)
def test_wrong_answers_are_explained(search, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        verify.check_answers(search)
        verify.check_calls(search)


@pytest.mark.parametrize(
    ("workers", "speeds", "verdict"),
    [
        (
            9,
            {9: 920, 8: 850},
            "passed: 920 images/s with workers=9, 850 with workers=8; the target is 900",
        ),
        (9, {9: 950, 8: 905}, "passed: 950 images/s with workers=9"),  # one more than the fewest
        (10, {10: 950, 8: 910}, "failed: try workers=8"),
        (10, {10: 950, 4: 400}, "failed: try workers=9"),
        (4, {4: 910}, "passed: 910 images/s with workers=4; the target"),  # the first in question
        (9, {9: 850}, "failed: 850 images/s with workers=9; the target is 900"),
        (9, {8: 950}, "failed: workers=9 was not tried"),
        (None, {8: 950}, "failed: workers=8 reaches the target of 900"),
        (None, {16: 850}, "passed: unreachable here. At most 850 images/s"),
    ],
)
def test_a_number_of_workers_is_judged_by_measured_speeds(workers, speeds, verdict: str) -> None:
    assert verify.judge_workers(workers, speeds, range(4, 17), 900).startswith(verdict)


def test_scaled_decoding_saves_fewer_seconds_than_pixels() -> None:
    table = loading.time_scaled_decoding(4)
    assert list(table.index) == [1, 2, 4, 8] and table["pixels"][4] == pytest.approx(1 / 16, 0.02)
    assert table["pixels"][4] < table["time"][4]


def test_numa_nodes_of_a_machine_with_two(tmp_path: Path) -> None:
    for number, cores in ((0, "0-15"), (1, "16-31")):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(cores + "\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal:       67108864 kB\n")
    table = numa.numa_nodes(tmp_path)
    assert list(table["cores"]) == ["0-15", "16-31"] and set(table["memory_gib"]) == {64}
    assert numa.numa_nodes(tmp_path / "none").empty


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to cores")
def test_loading_on_one_core_restores_the_others(capsys: pytest.CaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    numa.load_on_cores([min(before)], workers=1)
    assert "1 workers on 1 of this machine's cores" in capsys.readouterr().out
    assert os.sched_getaffinity(0) == before


def test_trials_are_shorter_where_they_are_not_recorded() -> None:
    assert lab.loader_settings("recorded-nvidia-h200") == lab.LOADER_SETTINGS
    for workers in (True, False):
        config = rung("dataloader", **lab.loader_settings("local", workers=workers))
        measured = config.epochs * config.steps - config.warmup_steps
        assert measured >= 8 and config.warmup_steps > config.steps  # into the second epoch
        assert not workers or math.gcd(measured, 16) == 16  # complete rounds of 8 or 16 workers
