"""Runs that would take turns must fit into the host's memory, with their loading processes."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from job_helpers import CONFIG, prepared

from course.config import GIB, change
from course.jobs import memory_check


class Pool:
    """Predicts that the training processes themselves need nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, *_: object) -> Future:
        future: Future = Future()
        future.set_result(0.0)
        return future


@pytest.mark.parametrize(("workers", "fits"), [(0, True), (-1, False)])
def test_workers_on_all_cores_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, fits: bool
) -> None:
    monkeypatch.setattr(memory_check, "core_count", lambda: 1000)
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: (100 * GIB, 100 * GIB))
    monkeypatch.setattr(memory_check, "ProcessPoolExecutor", Pool)
    config = change(CONFIG, {"workers": workers, "device": "cpu"})
    runs = [prepared(tmp_path / name, "", config) for name in ("a", "b")]
    reason = memory_check.why_not_together(runs, None)
    assert bool(reason) != fits, reason
