"""Runs that would take turns must fit into the host's memory, with their loading processes."""

import multiprocessing
from concurrent.futures import Future
from pathlib import Path

import pytest
from job_helpers import CONFIG, prepared

from course.config import GIB, change, rung
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


@pytest.mark.parametrize(("gib", "fits"), [(400, True), (40, False)])
def test_two_gpts_need_the_memory_of_their_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, fits: bool
) -> None:
    """In fp32, 16 sequences of GPT-2's size have 12 GiB of attention scores, and 3 of tokens'."""
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: (gib * GIB, gib * GIB))
    sizes = vars(rung("gpt").fitted(has_accelerator=True))
    configs = [change(rung(name), {k: sizes[k] for k in ("context", "layers", "heads", "width")})
               for name in ("gpt", "gpt_half")]  # fmt: skip
    runs = [prepared(tmp_path / c.rung, "", change(c, {"device": "cpu"})) for c in configs]
    reason = memory_check.why_not_together(runs, multiprocessing.get_context("spawn"))
    assert (reason == "") == fits and ("they need up to 141" in reason) != fits, reason
