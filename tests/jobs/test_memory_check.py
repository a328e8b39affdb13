"""Runs that would take turns must fit into the host's memory, with their loading processes."""

import multiprocessing
from concurrent.futures import Future
from pathlib import Path

import pytest
from job_helpers import CONFIG, prepared

from course.config import GIB, change, rung
from course.jobs import memory_check
from course.runs.recordings import recorded_runs


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


@pytest.mark.parametrize(("gib", "fits"), [(134, True), (40, False)])  # an H200's, and an A100's
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
    assert (reason == "") == fits and ("they need up to 89" in reason) != fits, reason


def test_the_bound_of_a_gpt_is_above_what_it_needed_and_not_far_above() -> None:
    """Else it runs out of memory, or two GPTs take no turns on a GPU where they could."""
    for run in recorded_runs("nvidia-h200", "gpt"):
        if run.config.attention != "sdpa":  # the bound has written-out attention
            peak = run.record.peak_gib
            assert peak < memory_check._upper_bound_gib(run.config) < 1.6 * peak, run
