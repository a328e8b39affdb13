"""How long ranks wait for slower ones, from traces whose times are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainspeed import recorder
from trainspeed.limits import limits_of
from trainspeed.parts import Parts
from trainspeed.profile import Profile
from trainspeed.ranks import Waiting, waiting_of
from trainspeed.traces import assemble

STEP_S = 10.0
NO_LIMITS = {
    **dict.fromkeys(("loaders", "optimizers", "forwards"), []),
    **dict.fromkeys(("waits", "lines"), {}),
    "is_compiled": False,
    "machine": {"device": "cuda", "cores": 8},
}


def rank(
    number: int,
    collectives: list[tuple[float, float]],
    *,
    computing: list[tuple[float, float]] = (),
    origin_s: float = 0.0,
    first: int = 5,
    ranks: int = 2,
) -> Profile:
    """Return the profile of a rank, from begins and ends by the machine's clock.

    Its trace begins with iteration number `first`, at `first * STEP_S`.
    """
    zero = first * STEP_S

    def row(name: str, begin: float, end: float, thread: int = 1) -> dict:
        return {"name": name, "start_s": begin - zero, "duration_s": end - begin, "thread": thread}

    rows = {
        "ranges": [
            row(f"ProfilerStep#{n}", zero + n * STEP_S, zero + (n + 1) * STEP_S) for n in range(3)
        ],
        "operators": [row("aten::mm", *span, 2) for span in computing],
        "collectives": [
            row("gloo:all_reduce", *span)
            | {"operation": "all_reduce", "type": "float32", "bytes": 4, "group_size": ranks}
            for span in collectives
        ],
    }
    trace = assemble(rows, device="", source="", dropped={})
    kinds = ["warm-up"] * first + ["traced"] * 3
    values = {"rank": number, "iterations": [{"kind": kind} for kind in kinds]}
    profile = Profile(values, Path())
    profile.trace = replace(trace, origin_s=origin_s + zero)
    return profile


def test_a_rank_waits_until_the_last_one_has_come() -> None:
    fast = rank(0, [(51, 59), (62, 68), (72, 74)], computing=[(63, 64)])
    slow = rank(1, [(51, 59), (67, 68), (71, 74)])
    waiting = waiting_of([fast, slow])
    # The first waits from 62 to 67, and computes for one second of it; the other from 71 to 72.
    assert waiting.of_step == pytest.approx([4 / 20, 1 / 20])
    assert waiting.of_communication == pytest.approx([4 / 7, 1 / 4])
    assert waiting.last == [0.5, 0.5] and waiting.longest == 0


def test_equal_work_is_the_mean_of_the_ranks() -> None:
    waiting = Waiting([0.5, 0.0], [1.0, 0.0], [0.0, 1.0])  # one computes for 0.5 s, one for 1 s
    profile = Profile(NO_LIMITS, Path())
    (limit,) = limits_of(profile, Parts(1.0, compute=0.5), {}, waiting)
    assert limit.name == "imbalance" and limit.gain == pytest.approx(1 / 0.75)
    assert limit.evidence[1] == "rank 0 waits the longest: 50% of the step"


def test_a_rank_does_not_wait_while_another_collective_sends() -> None:
    # Two communicators: one sends from 62 to 64, and the other waits from 61.5 to 63.5.
    first = rank(0, [(51, 59), (61, 64), (61.5, 65)])
    second = rank(1, [(51, 59), (62, 64), (63.5, 65)])
    waiting = waiting_of([first, second])
    assert waiting.of_step == pytest.approx([1 / 10, 0])
    assert waiting.of_communication == pytest.approx([1 / 4, 0])


def test_only_iterations_that_all_ranks_traced_count() -> None:
    fast = rank(0, [(52, 58), (62, 68), (72, 78)], first=5)
    slow = rank(1, [(67, 68), (76, 78), (88, 89)], first=6)
    waiting = waiting_of([fast, slow])  # in the one in which no profiler started, from 70 to 80
    assert waiting.of_step == pytest.approx([4 / 10, 0]) and waiting.last == [0, 1]
    assert waiting.slowest == 1
    slow = rank(1, [(77, 78), (82, 83), (92, 93)], first=7)
    assert waiting_of([fast, slow]).of_step == pytest.approx([5 / 10, 0])  # better than none


@pytest.mark.parametrize("times_s", [(0.031, 0.0315), (0.0315, 0.031), (0.199, 0.201), (9.0, 9.9)])
def test_ranks_trace_the_same_iterations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times_s: tuple[float, float]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    clock = [0.0]
    monkeypatch.setattr(recorder, "now", lambda: clock[0])
    ranks = [recorder.Recorder(recorder.Plan(str(tmp_path), traced=0)) for _ in times_s]
    for iteration in range(200):
        for single, seconds in zip(ranks, times_s):
            clock[0] = iteration * seconds
            single.mark()
    counts = [[row.kind for row in single.iterations].count(recorder.TIMED) for single in ranks]
    for single in ranks:
        single.finish()
    assert counts[0] == counts[1] < 100


def test_a_rank_that_counts_by_another_rule_times_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    clock = [0.0]
    monkeypatch.setattr(recorder, "now", lambda: clock[0])
    single = recorder.Recorder(recorder.Plan(str(tmp_path), traced=0), "batches")
    for rule, seconds in (("batches", 0.1), ("optimizer steps", 0.01)):
        if rule != single.rule:
            single.count_by(rule)
        for _ in range(300):
            single.mark()
            clock[0] += seconds
            if single.state == recorder.OBSERVED:
                break
    single.finish()
    count = [row.kind for row in single.iterations].count(recorder.TIMED)
    assert single.rule == "optimizer steps" and count * 0.01 >= single.plan.timed_s


@pytest.mark.parametrize(
    "profiles",
    [
        [rank(0, [(52, 58)])],
        [rank(0, [(52, 58)]), rank(1, [])],
        [rank(0, [(52, 58)]), rank(1, [(92, 94)], first=9)],  # of different iterations
        [rank(0, [(52, 58)], ranks=4), rank(1, [(52, 58)], ranks=4)],  # ranks of other machines
    ],
)
def test_what_is_not_known(profiles: list[Profile]) -> None:
    assert waiting_of(profiles) is None


def test_a_rank_without_a_trace() -> None:
    other = rank(1, [(52, 58)])
    other.trace = None
    assert waiting_of([rank(0, [(52, 58)]), other]) is None


def test_waiting_and_sending_are_limits_of_their_own() -> None:
    profile = Profile(NO_LIMITS, Path())
    parts = Parts(1.0, compute=0.4, communication=0.6, waiting=0.5)
    waiting = Waiting([0.1, 0.5], [0.2, 0.8], [0.9, 0.1])
    limits = {limit.name: limit for limit in limits_of(profile, parts, {}, waiting)}
    assert limits["imbalance"].gain == pytest.approx(1 / 0.7)  # waits of 0.3 on average
    assert limits["imbalance"].evidence[0] == "rank 0 begins 90% of the collectives last"
    assert limits["communication"].gain == pytest.approx(1 / 0.9)
    parts.waiting = None
    (alone,) = limits_of(profile, parts, {})
    assert alone.name == "communication" and alone.gain == pytest.approx(1 / 0.4)


def test_traces_of_nccl_are_joined_by_the_clock_of_the_machine(tmp_path: Path) -> None:
    """Each file has times since a base of its own, in microseconds."""
    profiles = []
    for number, (base_us, begin_us) in enumerate([(1e6, 1300.0), (1e6 - 500, 1500.0)]):
        events = []

        def add(
            category: str, name: str, begin: float, end: float, base=base_us, events=events, **args
        ) -> None:
            begin += 1e6 - base
            event = {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end + 1e6}
            event["dur"] -= base + begin
            events.append(event | {"args": args, "tid": 1, "pid": 0})

        for step in range(2):
            add("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000 * (step + 1))
        add("cuda_runtime", "cudaLaunchKernel", 1010, 1011, correlation=1)
        add("cuda_runtime", "cudaLaunchKernel", 1020, 1021, correlation=2)
        sent = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
        sent |= {"Group size": 2, "stream": 20, "device": 0, "correlation": 2}
        add("kernel", "gemm", 1100, 1350, stream=7, device=0, correlation=1)
        add("kernel", "ncclDevKernel_AllReduce_Sum_f32(x)", begin_us, 1600, **sent)
        content = {"traceEvents": events, "baseTimeNanoseconds": base_us * 1e3}
        (tmp_path / f"{number}.json").write_text(json.dumps(content))
        kinds = [{"kind": "traced"}] * 2
        profiles.append(Profile({"trace": f"{number}.json", "iterations": kinds}, tmp_path))
    waiting = waiting_of(profiles)
    # The first waits from 1300 to 1500, and its product runs until 1350.
    assert waiting.of_step == pytest.approx([0.15, 0]) and waiting.last == [0, 1]
    assert waiting.of_communication == pytest.approx([150 / 250, 0])
