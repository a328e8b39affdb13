"""Stretches of time: joined where they touch, and cut by one another."""

from course.analysis.traces.spans import covered, exposed, joined


def test_stretches_are_joined_and_cut() -> None:
    busy = joined([(4, 6), (0, 2), (1, 3), (6, 7)])
    assert busy == [(0, 3), (4, 7)]
    assert covered((2, 5), busy) == 2
    assert [covered(each, busy) for each in ((-1, 9), (-2, -1), (3, 4), (5, 5), (7, 9))] == [
        6, 0, 0, 0, 0
    ]  # fmt: skip
    assert exposed((2, 5), busy) == [(3, 4)]
    assert exposed((-1, 9), busy) == [(-1, 0), (3, 4), (7, 9)]
    assert exposed((4, 7), busy) == []
