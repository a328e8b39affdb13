"""Diagnoses of the recorded traces: the right ones pass, and each wrong one is explained."""

import pytest

from course import check_written
from course.analysis import traces
from labs.day1_5_profiler import limits
from labs.day1_5_profiler.memory import live_bytes, plot_memory, recorded_memory


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
    if phases["load"] > phases["forward"]:
        return "input"
    if last["gap_s"] < 0.1 * last["span_s"]:
        return "memory" if convolution_share(trace) < 0.5 else "compute"
    return "synchronisation" if len(trace.copies.query("kind == 'DtoH'")) > 20 else "launches"


def always_busy(trace):
    return "memory" if convolution_share(trace) < 0.5 else "compute"


def no_input(trace):
    answer = limits.limit_of(trace)
    return "launches" if answer == "input" else answer


def no_waits(trace):
    answer = limits.limit_of(trace)
    return "launches" if answer == "synchronisation" else answer


def all_waits(trace):
    answer = limits.limit_of(trace)
    return "synchronisation" if answer == "launches" else answer


def always_loading(trace):
    answer = limits.limit_of(trace)
    return answer if answer in ("compute", "memory") else "input"


def no_memory(trace):
    answer = limits.limit_of(trace)
    return "compute" if answer == "memory" else answer


def no_compute(trace):
    answer = limits.limit_of(trace)
    return "memory" if answer == "compute" else answer


def in_seconds(trace):
    """Right for the four traces, but it compares seconds."""
    load_s = trace.ranges.loc[trace.ranges["name"] == "load", "duration_s"].max()
    return "input" if load_s > 0.1 else no_input(trace)


def by_name(trace):
    """Right for the four traces, but it reads their names."""
    answers = limits._answers()
    return answers.get(trace.source.removeprefix("trace "), "memory")


def misspelled(trace):
    return "launch"


@pytest.mark.parametrize("function", [limits.limit_of, unusual])
def test_right_answers(function) -> None:
    checked = check_written("profiler.limit_of", function)
    assert checked.passed, checked


@pytest.mark.parametrize(
    "function, words",
    [
        (always_busy, "its own speed isn't the limit"),
        (no_input, "of the time in load"),
        (no_waits, "the host waited for the device"),
        (all_waits, "the host waited for the device"),
        (always_loading, "of the time in load"),
        (no_memory, "the other operators only move numbers"),
        (no_compute, "the other operators only move numbers"),
        (in_seconds, "compare shares, not seconds"),
        (by_name, "compare shares, not seconds"),
        (misspelled, "expected one of compute, memory, input"),
    ],
)
def test_wrong_answers_are_explained(function, words: str) -> None:
    checked = check_written("profiler.limit_of", function)
    assert not checked.passed and checked.function is limits.limit_of
    assert words in " ".join(repr(checked).split())


def test_memory_of_a_step() -> None:
    table = recorded_memory()
    live = live_bytes(table)
    assert live.min().min() >= 0
    # The allocator counts blocks, which are larger than the tensors in them.
    assert 0.8 < live.sum(axis=1).max() / table.attrs["peak_bytes"] < 1
    assert live["weights"].iloc[-1] > 0 and live["activations"].iloc[-1] == 0
    (axes,) = plot_memory(table).axes
    assert "GiB at the peak" in axes.figure.alt
