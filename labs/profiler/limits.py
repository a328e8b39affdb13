"""Four traces whose limit is unknown, and the checks of a function that finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache

import pandas as pd

from course import recorded, trace_path
from course.analysis import read_trace
from course.runs import recorded_table, recordings
from trainspeed import traces

LimitOf = Callable[[traces.Trace], str]
COMPUTE, MEMORY, INPUT = "compute", "memory", "input"
SYNCHRONISATION, LAUNCHES = "synchronisation", "launches"
LIMITS = (COMPUTE, MEMORY, INPUT, SYNCHRONISATION, LAUNCHES)
MACHINE, PART = "nvidia-h100", "limits"
TIMES = ("start_s", "duration_s", "self_s", "launch_s")
BUSY, FEW = 0.9, 10  # share of a device that is the limit; synchronisations that cost nothing


@cache
def unknown_traces() -> dict[str, traces.Trace]:
    """Return the four traces, of one or two steps each, by letter."""
    paths = {
        letter: recordings.trace_folder(MACHINE) / f"unknown-{letter}.json.gz"
        for letter in _answers()
    }
    return {name: replace(read_trace(path), source=f"trace {name}") for name, path in paths.items()}


def _answers() -> dict[str, str]:
    return {row["trace"]: row["limit"] for row in recordings.part(MACHINE, PART)["rows"]}


def recorded_fixes() -> pd.DataFrame:
    """Return each trace's limit, and its step in ms, without the profiler, before and after a fix.

    Columns: trace, limit, batch_size, ms, fix, fixed_ms, machine.
    """
    table = recorded_table(MACHINE, PART)
    ladder = recorded(MACHINE)
    compiled = ladder[ladder["rung"].eq("compile") & ladder["precision"].eq("bf16")].iloc[0]
    table.loc[table["limit"] == MEMORY, "fixed_ms"] = compiled["step_s"] * 1e3  # the same batch
    return table


def evidence(trace: traces.Trace) -> pd.Series:
    """Return what shows a trace's limit, over its complete steps.

    busy_share: of the time, with a kernel running (the mean of the devices); load_share: with the
    host in "load"; convolution_share: of the device's time; waits: calls in which the host waited
    for the device, per step.
    """
    complete = traces.steps(trace)
    begin = complete["start_s"].min()
    end = (trace.kernels["start_s"] + trace.kernels["duration_s"]).max()
    window = [(begin, end)]
    load = trace.ranges[trace.ranges["name"] == "load"]
    operators = traces.by_operator(trace)
    waits = trace.calls["name"].str.contains("Synchronize").sum()
    return pd.Series(
        {
            "busy_share": _busy_share(trace.kernels, window),
            "load_share": _share(load, window),
            "convolution_share": operators.loc[
                operators["name"].str.contains("conv"), "share"
            ].sum(),
            "waits": waits / len(complete),
        }
    )


def _busy_share(kernels: pd.DataFrame, window: traces.Intervals) -> float:
    devices = kernels.groupby("device", dropna=False)
    return pd.Series([_share(rows, window) for _, rows in devices]).mean()


def _share(rows: pd.DataFrame, window: traces.Intervals) -> float:
    """Return the share of a window that rows of a trace cover."""
    covered = sum(
        traces.overlap_s(interval, window)
        for interval in traces.merge_intervals(traces.intervals_of(rows))
    )
    return covered / (window[0][1] - window[0][0])


def limit_of(trace: traces.Trace) -> str:
    """Return which of `LIMITS` holds in a trace."""
    facts = evidence(trace)
    if facts["busy_share"] > BUSY:
        return COMPUTE if facts["convolution_share"] > 0.5 else MEMORY
    if facts["load_share"] > 0.5:
        return INPUT
    return SYNCHRONISATION if facts["waits"] > FEW else LAUNCHES


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
    for letter, limit, words, trace in _other_causes():
        _check(function, trace, limit, f"trace {letter} {words}")
    recorded = (
        (MACHINE, "device", COMPUTE),
        (MACHINE, "channels_last", MEMORY),
        ("nvidia-h200", "channels_last", MEMORY),
    )
    for machine, name, limit in recorded:
        trace = replace(read_trace(trace_path(machine, name)), source="")
        _check(function, trace, limit, f"{name} on {machine}")
    return "the same at other speeds, and for traces of the ladder"


def _other_causes() -> Iterator[tuple[str, str, str, traces.Trace]]:
    """Yield traces whose cause is taken away, or another one added: letter, limit, words, trace.

    The host waits for the device to copy a number to it, so calls and copies change together.
    """
    letters = {limit: letter for letter, limit in _answers().items()}
    pairs = ((SYNCHRONISATION, LAUNCHES), (LAUNCHES, SYNCHRONISATION))
    for old, new in (*pairs, (MEMORY, MEMORY)):  # a busy device is the limit, with waits or not
        trace = unknown_traces()[letters[old]]
        if new == LAUNCHES:
            words = "without calls that wait for the device"
            calls = trace.calls[~trace.calls["name"].str.contains("Synchronize|Memcpy")]
            copies = trace.copies[trace.copies["kind"] != "DtoH"]
        else:
            words = "with calls that wait for the device"
            names = trace.calls["name"].where(trace.calls.index % 2 == 0, "cudaStreamSynchronize")
            calls = trace.calls.assign(name=names)
            more = trace.copies.sample(len(calls) // 2, replace=True, random_state=0)
            more = more.assign(kind="DtoH", memory="Device -> Pinned", bytes=4)
            copies = pd.concat([trace.copies, more], ignore_index=True)
        yield letters[old], new, words, replace(trace, calls=calls, copies=copies, source="")
    trace = unknown_traces()[letters[MEMORY]]  # in load, a host may also wait for a busy device
    names = trace.ranges["name"].replace({"forward": "load", "backward": "load", "load": "forward"})
    ranges = trace.ranges.assign(name=names)
    yield letters[MEMORY], MEMORY, "with a host in load", replace(trace, ranges=ranges, source="")


def scaled(trace: traces.Trace, factor: float) -> traces.Trace:
    """Return a trace whose times are multiplied, its rows in a different order."""
    tables = {}
    for name, table in _tables(trace).items():
        times = {name: table[name] * factor for name in TIMES if name in table}
        tables[name] = table.assign(**times).sample(frac=1, random_state=0)
    return replace(trace, **tables, source="")


def _tables(trace: traces.Trace) -> dict[str, pd.DataFrame]:
    values = {field.name: getattr(trace, field.name) for field in fields(trace)}
    return {name: value for name, value in values.items() if isinstance(value, pd.DataFrame)}


def _check(function: LimitOf, trace: traces.Trace, limit: str, name: str) -> None:
    tables = {name: table.copy() for name, table in _tables(trace).items()}
    answer = function(trace)
    for table, old in tables.items():
        assert getattr(trace, table).equals(old), f"it changes `trace.{table}`: work on a copy"
    assert answer in LIMITS, (
        f"{name}: your function returned {answer!r}, expected one of {', '.join(LIMITS)}"
    )
    assert answer == limit, (
        f"{name}: your function returned {answer!r}, but {_contradiction(trace, answer, limit)}"
    )


def _contradiction(trace: traces.Trace, answer: str, limit: str) -> str:
    """Return the evidence against a wrong answer."""
    facts = evidence(trace)
    busy = f"the device is busy for {facts['busy_share']:.0%} of the time (`busy_share`)"
    if answer in (COMPUTE, MEMORY) and limit in (COMPUTE, MEMORY):
        return (
            f"convolutions, which do nearly all FLOP, take {facts['convolution_share']:.0%} of the "
            f"device's time; the other operators only move numbers"
        )
    if answer in (COMPUTE, MEMORY):
        return f"{busy}: its own speed isn't the limit"
    if limit in (COMPUTE, MEMORY):
        return f"{busy}: it hardly waits for the host"
    if INPUT in (answer, limit):
        return f"the host spends {facts['load_share']:.0%} of the time in load (`load_share`)"
    return f"the host waited for the device {facts['waits']:.1f} times per step (`waits`)"
