"""One page about a profile: where the time goes, and what limits it. As text, or as values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainspeed.limits import Limit, limits_of
from trainspeed.parts import Parts, parts_of
from trainspeed.profile import Profile
from trainspeed.ranks import Waiting, waiting_of
from trainspeed.rates import rates_of
from trainspeed.text import digits, flop_rate

NO_LIMIT = "Nothing that is known here would gain 5 %."
NO_TRACE = "Without a trace, only the data and the optimizer are judged: neither would gain 5 %."
WIDTH = 40  # of the bars
BUSY = 2.0  # processes that want a core, from which the machine is busy with others, too


def seconds(value: float) -> str:
    """Format a time in the unit that fits."""
    return f"{digits(value)} s" if value >= 1 else f"{digits(1e3 * value)} ms"


def values_of(profiles: list[Profile]) -> dict[str, Any]:
    """Return everything that a page shows, as values that JSON has."""
    slowest = max(profiles, key=lambda profile: profile.step_s)
    first = profiles[0]
    parts, rates = parts_of(first), rates_of(first.machine)
    if waiting := waiting_of(profiles):
        parts.waiting = waiting.of_communication[0] * parts.communication
    limits = limits_of(first, parts, rates, waiting)
    q1, median, q3 = first.quartiles()
    samples, tokens = count_inputs(first)
    # A CPU's rates are measured next to the script, so that only their ratio counts.
    peak = rates.get(_format_name(parts.types), 0.0) if first.is_gpu else 0.0
    flop_per_s = parts.flop / parts.step
    return {
        "command": first.values["command"],
        "machine": first.machine,
        "rule": first.values["rule"],
        "iterations": len(first.values["iterations"]),
        "timed": first.count,
        "step_s": parts.step,
        "step_s_quartiles": [q1, median, q3],
        "batches_per_iteration": first.median("batches"),
        "backwards_per_iteration": first.mean("backwards"),
        "updates_per_iteration": first.mean("updates"),
        "samples_per_s": samples / parts.step * len(profiles),
        "tokens_per_s": tokens / parts.step * len(profiles),
        "flop_per_s": flop_per_s,
        "peak_share": flop_per_s / peak if peak else None,
        "parts": asdict(parts),
        "limits": [asdict(limit) for limit in limits],
        "memory": first.values["memory"],
        "loaders": first.values["loaders"],
        "optimizers": first.values["optimizers"],
        "forwards": first.values["forwards"],
        "stages": first.stages,
        "lines": first.values["lines"],
        "ranks": len(profiles),
        "processes": first.values["processes"],
        "slowest_rank": slowest.values["rank"],
        "slowest_step_s": slowest.step_s,
        "waiting": asdict(waiting) if waiting else None,
        "has_trace": bool(parts.top),
    }


def count_inputs(profile: Profile) -> tuple[float, float]:
    """Return the samples and tokens of an iteration: of its batches, or of what the model got.

    Of a model's tokens, which dimension has the samples is not known.
    """
    if profile.mean("batches"):
        return profile.median("samples"), profile.mean("tokens")
    first = profile.main_forward
    if not first:
        return 0.0, 0.0
    tokens = first["tokens"] * first["calls"]
    return 0.0 if tokens else first["samples"] * first["calls"], tokens


def _format_name(types: str) -> str:
    return {"float": "fp32", "c10::BFloat16": "bf16", "fp16": "bf16"}.get(types, types)


def text_of(values: dict[str, Any]) -> str:
    """Return the page as text."""
    parts = Parts(**values["parts"])
    limits = [Limit(**limit) for limit in values["limits"]]
    lines = ["", f"trainspeed: {' '.join(values['command'])}", _device(values), "", *_times(values)]
    lines += ["", *_bars(values, parts)]
    if values["memory"].get("peak"):
        lines += ["", _memory(values["memory"])]
    if limits:
        lines += ["", "What limits it, by what removing it could gain at most:"]
        for number, limit in enumerate(limits, 1):
            lines.append(f"{number}. up to {digits(limit.gain)}×  {limit.title}")
            lines += [f"     {line}" for line in limit.evidence if line]
            lines.append(f"     → {limit.change}")
    else:
        lines += ["", NO_LIMIT if values["has_trace"] else NO_TRACE]
    return "\n".join([*lines, ""])


def _device(values: dict[str, Any]) -> str:
    machine = values["machine"]
    name = f"{machine['cores']} CPU cores" if machine["device"] == "cpu" else machine["device_name"]
    ranks = f", {values['ranks']} ranks" if values["ranks"] > 1 else ""
    return f"{name}{ranks}, PyTorch {machine['torch']}"


def _times(values: dict[str, Any]) -> list[str]:
    q1, median, q3 = values["step_s_quartiles"]
    lines = [
        f"{seconds(values['step_s'])} per iteration (middle half {seconds(q1)} to {seconds(q3)}, "
        f"{values['timed']} timed of {values['iterations']})"
    ]
    for name, key in (("samples", "samples_per_s"), ("tokens", "tokens_per_s")):
        if values[key]:
            lines[0] += f", {digits(values[key])} {name}/s"
    counts = [
        f"{digits(count)} {one if count == 1 else many}"
        for key, one, many in (
            ("batches", "batch", "batches"),
            ("backwards", "backward pass", "backward passes"),
            ("updates", "optimizer step", "optimizer steps"),
        )
        if (count := values[f"{key}_per_iteration"])
    ]
    lines.append(f"An iteration has {', '.join(counts)}; counted by {values['rule']}.")
    if values["flop_per_s"]:
        rate = f"{flop_rate(values['flop_per_s'])} in products"
        share = values["peak_share"]
        lines.append(f"{rate}: {_percent(share)} of this machine's rate." if share else f"{rate}.")
    if values["waiting"]:
        waiting = Waiting(**values["waiting"])
        slowest, longest = waiting.slowest, waiting.longest
        lines.append(
            f"Rank {slowest} begins {waiting.last[slowest]:.0%} of the collectives last; rank "
            f"{longest} waits the longest, for {waiting.of_step[longest]:.0%} of a step."
        )
    elif values["ranks"] > 1:
        lines.append(
            f"The slowest rank is {values['slowest_rank']}: {seconds(values['slowest_step_s'])}."
        )
    if (load := values["machine"].get("load_per_core", 0)) > BUSY:
        lines.append(
            f"The machine is busy: {load:.1f} processes want each core, and times scatter."
        )
    if values["processes"] > 1:
        lines.append(
            f"{values['processes']} processes train without ranks; this is the one with the most "
            f"iterations."
        )
    if not values["has_trace"]:
        lines.append("No iteration was traced: the script has its own profiler, or ended early.")
        lines.append("If it ended early, use --seconds 0, or let it train for longer.")
    return lines


def _percent(share: float) -> str:
    """Format a share; a small one is not 0%, which would mean that there is nothing."""
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _bars(values: dict[str, Any], parts: Parts) -> list[str]:
    is_gpu = values["machine"]["device"] != "cpu"
    names = {
        "data": "waiting for data",
        "compute": "computing" if values["has_trace"] else "the rest",
        "waiting": "waiting for ranks",
        "communication": "communicating",
        "launch": "launching" if is_gpu else "Python",
    }
    lines = []
    for key, name in names.items():
        share = (getattr(parts, key) or 0.0) / parts.step
        if key == "communication":
            share -= (parts.waiting or 0.0) / parts.step
        if share >= 0.001:
            lines.append(f"{name:17}{share:5.0%}  {'█' * round(WIDTH * share)}")
    for row in parts.top[:3]:
        if (share := row["seconds"] / parts.step) >= 0.005:  # or it says 0%
            lines.append(f"    {row['name'][:40]:40}{share:5.0%}")
    return lines


def _memory(memory: dict[str, float]) -> str:
    gib = {name: size / 2**30 for name, size in memory.items()}
    known = ["parameters", "gradients", "optimizer"]
    rest = gib["peak"] - sum(gib[name] for name in known)
    listed = ", ".join(f"{digits(gib[name])} {name}" for name in known)
    return f"Peak memory {digits(gib['peak'])} GiB: {listed}, {digits(max(rest, 0))} the rest."
