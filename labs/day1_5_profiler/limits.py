"""Four traces whose limit is unknown, and the checks of a function that finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pandas as pd

from course.analysis.traces.tables import Trace, by_operator, idle, read
from course.runs.recordings import part, recorded_table, trace_folder, trace_path

LimitOf = Callable[[Trace], str]
COMPUTE, MEMORY, INPUT = "compute", "memory", "input"
SYNCHRONISATION, LAUNCHES = "synchronisation", "launches"
LIMITS = (COMPUTE, MEMORY, INPUT, SYNCHRONISATION, LAUNCHES)
MACHINE, PART = "nvidia-h100", "limits"
TIMES = ("start_s", "duration_s", "self_s", "launch_s")
BUSY, FEW = 0.9, 10  # share of a device that is the limit; synchronisations that cost nothing


def unknown_traces() -> dict[str, Trace]:
    """Return the four traces of two steps each, by letter."""
    folder = trace_folder(MACHINE)
    return {
        letter: replace(
            read(folder / f"unknown-{letter.lower()}.json.gz"), source=f"trace {letter}"
        )
        for letter in _answers()
    }


def _answers() -> dict[str, str]:
    return {row["trace"]: row["limit"] for row in part(MACHINE, PART)["rows"]}


def recorded_fixes() -> pd.DataFrame:
    """Return each trace's limit, and its step in ms, without the profiler, before and after a fix.

    Columns: trace, limit, batch_size, ms, fix, fixed_ms, machine.
    """
    return recorded_table(MACHINE, PART)


def limit_of(trace: Trace) -> str:
    """Return which of `LIMITS` holds for the last step of a trace."""
    last = idle(trace).iloc[-1]
    if last["busy_share"] > BUSY:
        return COMPUTE if _convolution_share(trace) > 0.5 else MEMORY
    if last["host_in_largest_gap"].startswith("load") and _largest_share(trace) > 0.5:
        return INPUT
    return SYNCHRONISATION if _waits(trace) > FEW else LAUNCHES


def _convolution_share(trace: Trace) -> float:
    table = by_operator(trace)
    return float(table.loc[table["name"].str.contains("conv"), "share"].sum())


def _largest_share(trace: Trace) -> float:
    last = idle(trace).iloc[-1]
    return last["largest_gap_s"] / last["span_s"]


def _waits(trace: Trace) -> int:
    return int(trace.calls["name"].str.contains("Synchronize").sum())


def check_unknown(function: LimitOf) -> str:
    """Check the diagnosis of the four traces."""
    for letter, trace in unknown_traces().items():
        _check(function, trace, _answers()[letter], f"trace {letter}")
    return "the limit of all four traces"


def check_variants(function: LimitOf) -> str:
    """Check the diagnosis of the same steps at different speeds, and of traces of the ladder."""
    for letter, trace in unknown_traces().items():
        for factor in (0.2, 5.0):
            name = f"trace {letter} with all times × {factor:g} (compare shares, not seconds)"
            _check(function, scaled(trace, factor), _answers()[letter], name)
    recorded = (
        (MACHINE, "device", COMPUTE),
        (MACHINE, "channels_last", MEMORY),
        ("nvidia-h200", "channels_last", MEMORY),
    )
    for machine, name, limit in recorded:
        trace = replace(read(trace_path(machine, name)), source="")
        _check(function, trace, limit, f"{name} on {machine}")
    return "the same at other speeds, and for traces of the ladder"


def scaled(trace: Trace, factor: float) -> Trace:
    """Return a trace whose times are multiplied, its rows in a different order."""
    tables = {}
    for field in fields(trace):
        table = getattr(trace, field.name)
        if isinstance(table, pd.DataFrame):
            times = {name: table[name] * factor for name in TIMES if name in table}
            tables[field.name] = table.assign(**times).sample(frac=1, random_state=0)
    return replace(trace, **tables, source="")


def _check(function: LimitOf, trace: Trace, limit: str, name: str) -> None:
    answer = function(trace)
    assert answer in LIMITS, (
        f"{name}: your function returned {answer!r}, expected one of {', '.join(LIMITS)}"
    )
    assert answer == limit, (
        f"{name}: your function returned {answer!r}, but {evidence(trace, answer)}"
    )


def evidence(trace: Trace, answer: str) -> str:
    """Return what contradicts a wrong answer in a trace."""
    last = idle(trace).iloc[-1]
    busy = last["busy_share"]
    if answer in (COMPUTE, MEMORY) and busy <= BUSY:
        return (
            f"the device is busy for only {busy:.0%} of the step (`busy_share`): its own speed "
            f"is not the limit"
        )
    if busy > BUSY and answer not in (COMPUTE, MEMORY):
        return (
            f"the device is busy for {busy:.0%} of the step (`busy_share`): it hardly waits for "
            f"anything"
        )
    if answer in (COMPUTE, MEMORY):
        return (
            f"convolutions, which do nearly all FLOP, take {_convolution_share(trace):.0%} of the "
            f"device's time; the rest only moves numbers"
        )
    if answer == INPUT:
        return (
            f"the largest gap is {_largest_share(trace):.0%} of the step, and in it the host is "
            f"in {last['host_in_largest_gap']!r}"
        )
    if _largest_share(trace) > 0.5:
        return (
            f"one gap takes {_largest_share(trace):.0%} of the step, and in it the host is in "
            f"{last['host_in_largest_gap']!r}"
        )
    return (
        f"the host waited for the device {_waits(trace)} times (`trace.calls` with Synchronize in "
        f"their name)"
    )
