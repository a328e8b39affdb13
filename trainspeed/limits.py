"""What limits a training step, and the most that removing each limit could gain.

A gain is a bound and not a promise: the step's time if the part were gone, or as fast as the
hardware allows. Limits overlap, so gains do not multiply.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, field

from trainspeed.parts import Parts
from trainspeed.profile import Profile
from trainspeed.ranks import Waiting

LEAST_GAIN = 1.05  # of a limit that is worth a line
MOST = 5
LARGEST_RATIO = 8.0  # of the formats' rates: memory limits sooner than a data sheet says
LEAST_LAYOUT = 0.02  # of the step: some layers need a conversion
FUSIBLE_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
LEAST_SHARE = 0.01  # of the same time, from which a line is shown
LINE_SHARE = 0.25  # of the time without loading, from which a line may be a loop
HOST_SHARE = 0.9  # of the host's seconds: they are an estimate, and a bound must hold
MEMORY_SHARE = 0.25  # of compute outside products, from which memory is named


@dataclass(frozen=True)
class Limit:
    """A limit of the step.

    Attributes:
        name: data, waits, launch, format, layout, memory, optimizer, imbalance, communication.
        gain: the most that removing it gains, as a ratio of speeds.
        title: in a few words.
        evidence: what was seen, with lines of the user's code.
        change: what to do.
    """

    name: str
    gain: float
    title: str
    evidence: list[str] = field(default_factory=list)
    change: str = ""


def limits_of(
    profile: Profile, parts: Parts, rates: dict[str, float], waiting: Waiting | None = None
) -> list[Limit]:
    """Return at most five limits, in order of what removing them would gain.

    Args:
        profile: of one process.
        parts: of its step.
        rates: FLOP/s of products by format, as far as known: fp32, tf32, bf16.
        waiting: of the ranks for each other, if it is known.
    """
    candidates = [
        _data(profile, parts),
        _waits(profile, parts),
        _launch(profile, parts),
        _format(profile, parts, rates),
        _layout(profile, parts),
        _memory(profile, parts),
        _optimizer(profile, parts),
        _imbalance(parts, waiting),
        _communication(parts),
    ]
    worth = [limit for limit in candidates if limit and limit.gain >= LEAST_GAIN]
    return sorted(worth, key=lambda limit: -limit.gain)[:MOST]


def _share(seconds: float, parts: Parts) -> str:
    return f"{seconds / parts.step:.0%} of the step"


def _gain(parts: Parts, saved: float) -> float:
    """Return the ratio of speeds if `saved` seconds of the step were gone."""
    return parts.step / max(parts.step - saved, 0.02 * parts.step)


def _gain_on_device(parts: Parts, saved: float) -> float:
    """Return the same for seconds of the GPU's kernels: the host still has to launch them."""
    host = HOST_SHARE * (parts.host or 0.0) + parts.data
    return parts.step / max(parts.step - saved, min(host, parts.step), 0.02 * parts.step)


def _data(profile: Profile, parts: Parts) -> Limit | None:
    loaders = [loader for loader in profile.values["loaders"] if loader["batches"]]
    if not loaders or not parts.data:
        return None
    loader = max(loaders, key=lambda loader: loader["wait_s"])
    machine, workers = profile.machine, loader["workers"]
    # Processes that train next to each other without ranks share the cores.
    count = max(1, machine["cores"] // profile.values["processes"])
    others = parts.step - parts.data
    # The work of loading moves to other cores, and training on a CPU needs these cores, too.
    work = parts.data if workers == 0 else parts.step * workers
    wanted, spare = max(1, min(count - 1, 8)), count - machine["threads"]
    if profile.is_gpu:
        overlapped = max(others, work / count)
    elif spare > 0:
        overlapped = max(others, work / spare)
        wanted = min(spare, math.ceil(work / max(others, 0.1 * work)))
    else:
        overlapped, wanted = others + work / count, 1
    evidence = [f"{loader['line'] or loader['dataset']}: num_workers={workers}"]
    evidence[0] += f", this machine has {machine['cores']} cores"
    if profile.values["processes"] > 1:
        evidence[0] += f" for {profile.values['processes']} such processes"
    saved, change = parts.step - overlapped, ""
    if saved > 0 and (workers < count - 1 or workers == 0):
        change = f"DataLoader(…, num_workers={max(wanted, workers + 1)}, persistent_workers=True"
        change += ", pin_memory=True)" if profile.is_gpu else ")"
    if profile.stages:
        top = profile.stages[0]
        line = f" ({top['line']})" if top["line"] else ""
        evidence.append(f"{top['share']:.0%} of loading: {top['stage']}{line}")
        if top["share"] * parts.data > saved:
            saved = top["share"] * parts.data
            cheaper = f"make {top['stage']} cheaper, do it once before training, or on the batch"
            change = f"{cheaper}; or {change}" if change else cheaper
    title = f"the loop waits for batches: {_share(parts.data, parts)}"
    return Limit("data", _gain(parts, saved), title, evidence, change)


def _waits(profile: Profile, parts: Parts) -> Limit | None:
    waits = waiting_lines(profile)
    if not waits or parts.host is None:
        return None
    # Without waits, the host runs ahead, unless it is slower than the device anyway.
    host = min(parts.host, parts.step - parts.data)
    fastest = parts.data + max(parts.compute + parts.communication, host)
    evidence = [
        f"{line} ({name}, {n:.2g}×)"
        for (name, _, line), n in ((key.partition(", "), n) for key, n in [*waits.items()][:3])
    ]
    change = "read values every 50 steps, or keep them on the GPU: total += loss.detach()"
    title = f"the host waits for the GPU in every step, which then waits for it: {len(waits)} lines"
    return Limit("waits", parts.step / fastest, title, evidence, change)


def waiting_lines(profile: Profile) -> dict[str, float]:
    """Return "function, line" of calls that wait for the accelerator in most iterations."""
    waits = profile.values["waits"] if profile.is_gpu else {}
    return {line: count for line, count in waits.items() if count > 0.5}


def _launch(profile: Profile, parts: Parts) -> Limit | None:
    """Python, and operators that are too small to be worth their calls."""
    if not parts.launches:
        return None
    evidence = [f"{parts.launches:,.0f} operators per step"]
    if profile.is_gpu:
        saved = parts.launch
        title = f"the GPU waits for Python to launch kernels: {_share(saved, parts)}"
        compiled = 'torch.compile(model, mode="reduce-overhead")'
    else:
        saved = parts.launch + parts.small
        title = f"Python and small operators, not computing: {_share(saved, parts)}"
        evidence[0] += f"; Python between them takes {_share(parts.launch, parts)}"
        evidence[0] += f", small operators {parts.small / parts.step:.0%}"
        compiled = "" if profile.values["is_compiled"] else "torch.compile(model)"
    waiting = {key.partition(", ")[2] for key in profile.values["waits"]}
    lines = [
        (line, share)
        for line, share in profile.values["lines"].items()
        if line
        and share >= LEAST_SHARE
        and line not in waiting
        and not re.search(r"\.(backward|step)\(", line)
    ]
    evidence += [f"{share:.0%} of the time without loading: {line}" for line, share in lines[:3]]
    changes = [compiled, "a larger batch"]
    if lines and lines[0][1] >= LINE_SHARE:  # which no compiler of the model changes
        where = lines[0][0].partition(": ")[0]
        changes = [f"operators on whole tensors instead of a loop in {where}", "a larger batch"]
    return Limit(
        "launch", _gain(parts, saved), title, evidence, "; or ".join(filter(None, changes))
    )


def _format(profile: Profile, parts: Parts, rates: dict[str, float]) -> Limit | None:
    slow = parts.slow_products if profile.is_gpu else parts.products
    is_fp32 = parts.types.startswith(("fp32", "float")) or not parts.types
    best = rates.get("bf16", 0.0)
    if not is_fp32 or "fp32" not in rates or best <= rates["fp32"]:
        return None
    ratio = min(best / rates["fp32"], LARGEST_RATIO)
    device = profile.machine["device"]
    saved = slow * (1 - 1 / ratio)
    evidence = [f"products and convolutions in fp32: {_share(slow, parts)}"]
    change = f'with torch.autocast("{device}", torch.bfloat16): around forward and loss'
    if profile.is_gpu:
        tf32 = parts.tf32_products
        if tf32 > slow:
            ratio = best / rates.get("tf32", best)
            evidence = [f"products and convolutions in TF32: {_share(tf32, parts)}"]
        elif "tf32" in rates:
            change += '; or torch.set_float32_matmul_precision("high"), which stays closer to fp32'
        # All other operators move half as many bytes.
        others = max(0.0, parts.compute - parts.products - parts.layout - parts.optimizer)
        saved += tf32 * (1 - rates.get("tf32", best) / best) + others / 2
    if not slow and not parts.tf32_products or ratio <= 1:
        return None
    evidence += filter(None, [profile.main_forward.get("line")])
    title = f"fp32, where this machine multiplies {ratio:.1f}× as fast in bf16"
    return Limit("format", _gain_on_device(parts, saved), title, evidence, change)


def _layout(profile: Profile, parts: Parts) -> Limit | None:
    if parts.layout < LEAST_LAYOUT * parts.step:
        return None
    evidence = ["kernels that only turn NCHW into NHWC and back"]
    if parts.norms:
        share = _share(parts.norms, parts)
        evidence.append(f"batch norms, which are slower in NCHW, take {share}")
    change = "model.to(memory_format=torch.channels_last), and the same for images"
    saved = parts.layout + parts.slow_products + parts.norms
    title = f"layouts are converted: {_share(parts.layout, parts)}"
    return Limit("layout", _gain_on_device(parts, saved), title, evidence, change)


def _memory(profile: Profile, parts: Parts) -> Limit | None:
    rest = parts.compute - parts.products - parts.layout - parts.optimizer
    rest = rest if profile.is_gpu else parts.fusible
    if parts.compute <= 0 or rest < MEMORY_SHARE * parts.compute or not parts.top:
        return None
    from trainspeed.parts import FUSIBLE, PRODUCT

    def is_named(name: str) -> bool:
        return not PRODUCT.search(name) and (profile.is_gpu or bool(FUSIBLE.search(name)))

    rows = [row for row in parts.top if is_named(row["name"])][:3]
    evidence = [f"{row['name']}: {_share(row['seconds'], parts)}" for row in rows]
    is_compiled = profile.values["is_compiled"]
    change = "fuse by hand, or a cheaper operator" if is_compiled else "torch.compile(model) fuses"
    title = f"operators that compute little and move much: {_share(rest, parts)}"
    return Limit("memory", _gain(parts, rest), title, evidence, change)


def _optimizer(profile: Profile, parts: Parts) -> Limit | None:
    used = [row for row in profile.values["optimizers"] if row["implementation"] != "fused"]
    used = [row for row in used if row["kind"] in FUSIBLE_OPTIMIZERS]
    if not used or not parts.optimizer:
        return None
    first = max(used, key=lambda row: row["parameters"])
    change = f"torch.optim.{first['kind']}(…, fused=True)"
    title = f"the optimizer's step: {_share(parts.optimizer, parts)}"
    return Limit("optimizer", _gain(parts, parts.optimizer), title, [first["line"]], change)


def _imbalance(parts: Parts, waiting: Waiting | None) -> Limit | None:
    """Ranks that wait for a slower one; the page's rank may be that one."""
    if waiting is None:
        return None
    slowest, longest = waiting.slowest, waiting.longest
    saved = statistics.mean(waiting.of_step) * parts.step  # equal work is the mean of all
    evidence = [
        f"rank {slowest} begins {waiting.last[slowest]:.0%} of the collectives last",
        f"rank {longest} waits the longest: {waiting.of_step[longest]:.0%} of the step",
    ]
    change = "as much work for each rank: equal batches, and as many cores for loading"
    title = "ranks wait until the slowest one has computed its gradients"
    return Limit("imbalance", _gain(parts, saved), title, evidence, change)


def _communication(parts: Parts) -> Limit | None:
    if not parts.communication:
        return None
    total, seconds = parts.communication + parts.hidden, parts.communication
    evidence = [f"{parts.hidden / total:.0%} of communication is hidden behind compute"]
    change = "larger batches per GPU, no_sync while accumulating, gradients in bf16"
    title = "ranks wait for each other's data"
    if parts.waiting is not None:
        seconds -= parts.waiting
        title = "ranks send and receive, when all of them have come"
    title += f": {_share(seconds, parts)}"
    return Limit("communication", _gain(parts, seconds), title, evidence, change)
