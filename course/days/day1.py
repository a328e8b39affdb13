"""How it is seen that a TODO's mechanism really works: one entry a TODO.

Faults are looked for in the evidence of the runs (`course.training.evidence`), never in the
script's text: whoever solves a TODO in another way has solved it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course.config import Config, rung, vary
from course.days.lab import BUSY, SYNTHETIC, Lab, Mechanism, Recording, chosen
from course.runs.recordings import TRACE, trace_name
from course.runs.run import Run

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _device_faults(run: Run, against: Run) -> Iterator[str]:
    if set(against.record.evidence["devices"]) != {"cpu"}:
        yield 'the baseline left the CPU too: use the accelerator only if cfg.device == "auto"'
    if run.record.device != "cpu":
        if strangers := set(run.record.evidence["devices"]) - {run.record.device}:
            yield f"convolutions ran on {', '.join(strangers)}"
        return
    yield from _rehearsed(run.script.read_text(), run.config)


def _rehearsed(text: str, cfg: Config) -> Iterator[str]:
    from course.training.pretended import device_of_first_step

    small = replace(cfg, model="resnet18", image_px=32, batch_size=2, val_steps=0)
    device, error = device_of_first_step(text, small)
    if error:
        yield f"rehearsed with a pretended accelerator, the first step fails: {error}"
    elif device == "cpu":
        yield "rehearsed with a pretended accelerator, the first step still computes on the CPU"
    device, error = device_of_first_step(text, replace(small, device="cpu"))
    if error or device != "cpu":
        yield f'with cfg.device == "cpu" it must stay on the CPU: {error or "it does not"}'


def _device_seen(run: Run) -> str:
    if run.record.device == "cpu":
        return "rehearsed with a pretended accelerator: weights, images and labels all lie there"
    total = sum(run.record.evidence["devices"].values())
    return f"{total} of {total} convolutions ran on {run.record.device}"


def _device_limits(run: Run) -> str:
    return "this machine has no accelerator" if run.record.device == "cpu" else ""


def _amp_faults(run: Run, against: Run) -> Iterator[str]:
    seen, wanted = run.record.evidence, run.config.precision
    yield from _wrong_types(seen, "forward_types", wanted, "forward")
    yield from _wrong_types(
        against.record.evidence,
        "forward_types",
        against.config.precision,
        f"forward of the {against.config.rung} run",
    )
    if seen["autocast_in_backward"]:
        yield "autocast was still on in backward: only the forward pass and the loss lie inside"
    if halves := {NAMES[name] for name in seen.get("updated_types", {})} - {"fp32"}:
        yield f"the optimizer updates {', '.join(halves)} weights: they must stay fp32"


def _wrong_types(seen: dict[str, Any], key: str, wanted: str, where: str) -> Iterator[str]:
    types = {NAMES.get(name, name): count for name, count in seen[key].items()}
    if set(types) != {wanted}:
        found = ", ".join(f"{count} in {name}" for name, count in types.items())
        yield f"{where}: {wanted} was asked for, and the convolutions ran {found}"


def _amp_seen(run: Run) -> str:
    forward, backward = (
        sum(run.record.evidence[key].values()) for key in ("forward_types", "backward_types")
    )
    precision = run.config.precision
    return f"{forward} convolutions forward and {backward} backward in {precision}; weights fp32"


def _units_limits(run: Run) -> str:
    precision, units = run.config.precision, run.record.hardware.get("half_units", [])
    if precision == "fp32" or precision in units:
        return ""
    return f"{run.record.machine} has no units for {precision}, so software imitates the format"


def _none(run: Run, against: Run) -> Iterator[str]:
    """All that there is to see follows from the config (`course.days.implied`)."""
    yield from ()


def _layout_faults(run: Run, against: Run) -> Iterator[str]:
    seen, before = run.record.evidence, against.record.evidence
    for key, what in (("weight_layouts", "weights"), ("input_layouts", "inputs")):
        counts = dict(seen[key])
        either, last = counts.pop("either", 0), counts.pop("NHWC", 0)
        if counts or not last:
            found = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none NHWC"
            yield f"{what} of the convolutions: {last} NHWC, but also {found} (either: {either})"
        if before[key].get("NHWC"):
            yield f"the {against.config.rung} run has NHWC {what} too: only if cfg.channels_last"


def _layout_seen(run: Run) -> str:
    seen = run.record.evidence
    return (
        f"inputs of {seen['input_layouts']['NHWC']} convolutions in NHWC, and all weights in "
        f"which the two layouts differ ({seen['weight_layouts']['NHWC']})"
    )


def _trace_faults(run: Run, _: Run) -> Iterator[str]:
    from course.traces import tables

    path = run.folder / run.record.trace
    if not run.record.trace:
        yield (
            "no trace was written: start() the profiler, step() it after every step, and give "
            "it on_trace_ready=run.save_trace"
        )
        return
    found = tables.read(path)
    steps = found.ranges["name"].str.startswith("ProfilerStep").sum()
    if steps != run.config.profile_steps:
        yield f"{steps} steps were traced, not {run.config.profile_steps}: use profiling.schedule"
    if not found.operators["input_shapes"].map(len).any():
        yield "the trace has no shapes: record_shapes=True"
    if run.record.device == "cuda" and found.kernels.empty:
        yield "the trace has no GPU kernels: leave `activities` to the profiler"


def _trace_seen(run: Run) -> str:
    from course.traces import tables

    found = tables.read(run.folder / run.record.trace)
    return (
        f"{run.config.profile_steps} traced step(s), {len(found.operators)} operators with "
        f"shapes, {len(found.kernels)} GPU kernels"
    )


TRACED = {"profile_steps": 1, "warmup_steps": 4}
DAY1 = {
    "day1.device": Mechanism(
        "the step computes on the accelerator", 1, "device", "baseline",
        _device_faults, _device_seen, _device_limits, r"\.to\(device\)|device =",
        lambda run: run.config.device == "auto",
    ),
    "day1.amp": Mechanism(
        "the forward pass runs under autocast", 2, "amp", "device",
        _amp_faults, _amp_seen, _units_limits, "autocast",
        lambda run: run.config.precision != "fp32",
    ),
    "day1.scaler": Mechanism(
        "fp16 gradients are scaled", 3, "amp", "device",
        _none, lambda run: "loss scaled, gradients unscaled, an overflow on purpose left out",
        _units_limits, "scaler|backward", lambda run: run.config.precision == "fp16",
        changes={"precision": "fp16", "overflow_step": 1}, settings={"warmup_steps": 4},
    ),
    "day1.channels_last": Mechanism(
        "weights and images lie channels last", 4, "channels_last", "amp",
        _layout_faults, _layout_seen, _units_limits, "channels_last",
        lambda run: run.config.channels_last,
    ),
    "day1.profile": Mechanism(
        "a step is traced, and the measured ones are not slowed", 5, "device", "device",
        _trace_faults, _trace_seen, lambda run: "", "profiler",
        lambda run: run.config.profile_steps > 0, changes=TRACED, faster=False,
        settings={"warmup_steps": 4},
    ),
}  # fmt: skip


ON_CPU = BUSY | {"device": "cpu", "steps": 4, "warmup_steps": 1}  # where a step takes seconds
SWEPT = SYNTHETIC | {"steps": 20, "warmup_steps": 5}
FEW = SYNTHETIC | {"steps": 3, "warmup_steps": 1}
# The ladder as one GPU climbs it, and the same in the other formats, as their traces are named.
LARGE = {
    "device": rung("device", **BUSY),
    "amp": rung("amp", **BUSY),
    "channels_last": rung("channels_last", **BUSY),
    "tf32": rung("device", tf32=True, **BUSY),
    "amp_fp16": rung("amp", precision="fp16", **BUSY),
    "channels_last_fp16": rung("channels_last", precision="fp16", **BUSY),
}


def _traced(config: Config) -> Config:
    """A short run of the same, one step of it traced; named by what it differs in."""
    name = TRACE + trace_name(config)
    return replace(config, rung=name, steps=8, warmup_steps=5, profile_steps=1)


RECORDINGS = {
    "1.1": (
        Recording("throughput", [rung("baseline", **ON_CPU), LARGE["device"]]),
        Recording(
            "batch sizes",
            [
                rung(name, **SWEPT, batch_size=size)
                for name in ("channels_last", "amp", "device")
                for size in (64, 128, 512, 1024, 2048)
            ],
        ),
        Recording(
            "notebook",
            [
                *vary(rung("device", **FEW), batch_size=[32, 64, 256, 1024, 2048]),
                rung("device"),
                rung("baseline"),
            ],
        ),
    ),
    "1.2": (
        Recording(
            "throughput", [LARGE["amp"], LARGE["tf32"], LARGE["amp_fp16"], rung("amp", **ON_CPU)]
        ),
        Recording("notebook", [rung("amp"), rung("amp", rung="fp16", precision="fp16")]),
    ),
    "1.3": (
        Recording(
            "throughput",
            [
                LARGE["channels_last"],
                LARGE["channels_last_fp16"],
                rung("channels_last", **ON_CPU),
            ],
        ),
        Recording("notebook", [rung("channels_last")]),
    ),
    "1.4": (
        Recording("trace", [_traced(config) for config in LARGE.values()]),
        Recording(
            "notebook",
            [rung("device", warmup_steps=4), rung("device", warmup_steps=4, profile_steps=1)],
        ),
    ),
}


LABS = (
    Lab(
        "1.1", "day1_1_gpu", "one script, one device", 45, "day1_1", chosen(DAY1, "day1.device"),
        (("baseline", "fp32"), ("device", "fp32")), RECORDINGS["1.1"],
        jobs="5 (3 at once)", prepare="default set made; the script open in JupyterLab",
        stuck="editing without saving; TODO 1 is in three places; the dots of `predict`",
    ),
    Lab(
        "1.2", "day1_2_mixed_precision", "half the bits, and what they cost", 60, "day1_2",
        chosen(DAY1, "day1.amp", "day1.scaler"),
        (("device", "tf32"), ("amp", "bf16"), ("amp", "fp16")), RECORDINGS["1.2"],
        jobs="3 (2 at once)",
        prepare="which formats has the GPU units for? A V100 has fp16 only",
        stuck="TODO 3, the order of `scale`, `step`, `update`",
    ),
    Lab(
        "1.3", "day1_3_channels_last", "the same numbers, in another order", 45, "day1_3",
        chosen(DAY1, "day1.channels_last"), (("channels_last", "bf16"), ("channels_last", "fp16")),
        RECORDINGS["1.3"], jobs="2", prepare="nothing",
        stuck="shape against memory layout: only strides differ",
    ),
    Lab(
        "1.4", "day1_4_profiler", "the profiler, and proof", 60, "day1_4",
        chosen(DAY1, "day1.profile"), recordings=RECORDINGS["1.4"], jobs="2 (at once)",
        prepare="Perfetto needs the internet in the *browser*; the lab does without",
        stuck="reading two clocks; a traced step is slower, and is not timed",
    ),
)  # fmt: skip
