"""Intervals of time."""

from course.analysis.traces.intervals import merge_intervals, overlap_s, subtract_intervals


def test_intervals_are_merged_and_cut() -> None:
    busy = merge_intervals([(4, 6), (0, 2), (1, 3), (6, 7)])
    assert busy == [(0, 3), (4, 7)]
    intervals = ((2, 5), (-1, 9), (-2, -1), (3, 4), (5, 5), (7, 9))
    assert [overlap_s(interval, busy) for interval in intervals] == [2, 6, 0, 0, 0, 0]
    assert subtract_intervals((2, 5), busy) == [(3, 4)]
    assert subtract_intervals((-1, 9), busy) == [(-1, 0), (3, 4), (7, 9)]
    assert subtract_intervals((4, 7), busy) == []
