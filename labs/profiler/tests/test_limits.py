"""Diagnoses of the recorded traces, and the recorded memory of a step.

The notebook's cell and its wrong answers are in tests/checks/test_written.py.
"""

import pytest

from course import check_written
from labs.profiler import limits
from labs.profiler.memory import live_bytes, plot_memory, recorded_memory
from trainspeed import traces


def last_step(trace):
    return traces.idle(trace).iloc[-1]


def convolution_share(trace):
    kernels = trace.kernels
    is_convolution = kernels["operator"].str.contains("conv").astype(bool)
    return kernels.loc[is_convolution, "duration_s"].sum() / kernels["duration_s"].sum()


def unusual(trace):
    """A right answer with other evidence: phases of the host, and device-to-host copies."""
    last = last_step(trace)
    phases = trace.ranges.groupby("name")["duration_s"].sum()
    if last["gap_s"] < 0.1 * last["span_s"]:
        return "memory" if convolution_share(trace) < 0.5 else "compute"
    if phases["load"] > phases["forward"]:
        return "input"
    return "synchronisation" if len(trace.copies.query("kind == 'DtoH'")) > 20 else "launches"


def in_seconds(trace):
    """Right for the four traces, but it compares seconds."""
    load_s = trace.ranges.loc[trace.ranges["name"] == "load", "duration_s"].max()
    answer = limits.limit_of(trace)
    return "input" if load_s > 0.1 else "launches" if answer == "input" else answer


def by_name(trace):
    """Right for the four traces, but it reads their names."""
    answers = limits._answers()
    return answers.get(trace.source.removeprefix("trace "), "memory")


def test_an_unusual_right_answer() -> None:
    checked = check_written("profiler.limit_of", unusual)
    assert checked.passed, checked


@pytest.mark.parametrize("function", [in_seconds, by_name])
def test_answers_that_fit_only_the_four_traces(function) -> None:
    checked = check_written("profiler.limit_of", function)
    assert not checked.passed and checked.function is limits.limit_of
    assert "compare shares, not seconds" in " ".join(repr(checked).split())


def test_memory_of_a_step() -> None:
    table = recorded_memory()
    live = live_bytes(table)
    assert live.min().min() >= 0
    # The allocator counts blocks, which are larger than the tensors in them.
    assert 0.8 < live.sum(axis=1).max() / table.attrs["peak_bytes"] < 1
    assert live["weights"].iloc[-1] > 0 and live["activations"].iloc[-1] == 0
    (axes,) = plot_memory(table).axes
    assert "GiB at the peak" in axes.figure.alt
