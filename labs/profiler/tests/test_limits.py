"""Diagnoses of the recorded traces.

The notebook's cell and its wrong answers are in tests/checks/test_written.py.
"""

import pytest

from course import check_written
from labs.profiler import limits
from labs.profiler.figures import ANSWERS, plot_limits_tree
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


def test_the_tree_gives_the_limits_of_the_four_traces() -> None:
    answers = {
        "busy": lambda facts: facts["busy_share"] > limits.BUSY,
        "products": lambda facts: facts["convolution_share"] > 0.5,
        "load": lambda facts: facts["load_share"] > 0.5,
        "waits": lambda facts: facts["waits"] > limits.FEW,
    }
    for letter, trace in limits.unknown_traces().items():
        node, facts = "busy", limits.evidence(trace)
        while node in ANSWERS:
            node = ANSWERS[node][0 if answers[node](facts) else 1]
        assert node == limits._answers()[letter]
    alt = plot_limits_tree().alt
    assert all(limit in alt for limit in limits.LIMITS)
