"""How it is seen that a TODO's mechanism really works: one entry a TODO.

Faults are looked for in the evidence of the runs (`course.training.evidence`), never in the
script's text: whoever solves a TODO in another way has solved it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.config import Config, rung, vary
from course.days.lab import FULL_SIZE, SYNTHETIC, Lab, Mechanism, Place, Recording, chosen
from course.days.rehearsed import steps as rehearsals
from course.runs.recordings import TRACE, trace_name
from course.runs.run import Run
from course.valid import HALF_FORMATS


def _device_faults(run: Run, _: Run) -> Iterator[str]:
    yield from rehearsals.moving(run.script.read_text(), run.config)


def _device_seen(run: Run) -> str:
    if run.record.device == "cpu":
        return "rehearsed with a pretended accelerator: weights, images and labels all lie there"
    total = sum(run.record.evidence["devices"].values())
    return f"{total} of {total} convolutions ran on {run.record.device}"


def _device_limits(cfg: Config, place: Place) -> str:
    return "this machine has no accelerator" if place.device == "cpu" else ""


def _amp_seen(run: Run) -> str:
    forward, backward = (
        sum(run.record.evidence[key].values()) for key in ("forward_types", "backward_types")
    )
    precision = run.config.precision
    return f"{forward} convolutions forward and {backward} backward in {precision}; weights fp32"


def _amp_limits(cfg: Config, place: Place) -> str:
    if not place.half_units:
        return f"{place.machine} has no 16-bit hardware, so there is nothing to gain"
    return _emulation_limits(cfg, place)


def _emulation_limits(cfg: Config, place: Place) -> str:
    if cfg.precision in HALF_FORMATS and cfg.precision not in place.half_units:
        return f"{place.machine} has no hardware for {cfg.precision}: software emulates it, slowly"
    return ""


def _scaler_faults(run: Run, _: Run) -> Iterator[str]:
    planted = run.config.overflow_step or run.is_recorded  # a recording shows what it shows
    if run.config.precision == "fp16" and not planted:
        yield (
            "no gradient overflowed on purpose, so nobody saw such a step left out: launch with "
            "overflow_step=1 and warmup_steps=4"
        )


def _scaler_seen(run: Run) -> str:
    left_out = ", an overflow on purpose left out" * bool(run.record.evidence.get("overflow"))
    return f"loss scaled, gradients unscaled{left_out}"


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
    if not found.operators["input_shapes"].map(len).any():
        yield "the trace has no shapes: record_shapes=True"
    if run.record.device == "cuda" and found.kernels.empty:
        yield "the trace has no GPU kernels: leave `activities` to the profiler"


def _trace_seen(run: Run) -> str:
    from course.traces import tables

    found = tables.read(run.folder / run.record.trace)
    return (
        f"traced steps: {run.config.profile_steps}; {len(found.operators):,} operators with "
        f"shapes, {len(found.kernels)} GPU kernels"
    )


TRACED = {"profile_steps": 1, "warmup_steps": 4}
DAY1 = {
    "day1.device": Mechanism(
        title="the step computes on the accelerator",
        todo=1,
        rung="device",
        against="baseline",
        seen=_device_seen,
        limits=_device_limits,
        word=r"\.to\(device\)|device =",
        needed=lambda run: run.config.device == "auto",
        faults=_device_faults,
    ),
    "day1.amp": Mechanism(
        title="the forward pass runs under autocast",
        todo=2,
        rung="amp",
        against="device",
        seen=_amp_seen,
        limits=_amp_limits,
        word="autocast",
        needed=lambda run: run.requested_config.is_half,
        emulated={"precision": "bf16"},
    ),
    "day1.scaler": Mechanism(
        title="fp16 gradients are scaled",
        todo=3,
        rung="amp",
        against="device",
        seen=_scaler_seen,
        limits=_amp_limits,
        word="scaler|backward",
        needed=lambda run: run.config.precision == "fp16",
        faults=_scaler_faults,
        changes={"precision": "fp16", "overflow_step": 1},
        settings={"warmup_steps": 4},
    ),
    "day1.channels_last": Mechanism(
        title="weights and images lie channels last",
        todo=4,
        rung="channels_last",
        against="amp",
        seen=_layout_seen,
        limits=_emulation_limits,
        word="channels_last",
        needed=lambda run: run.config.channels_last,
    ),
    "day1.profile": Mechanism(
        title="a step is traced, and the measured ones are not slowed",
        todo=5,
        rung="device",
        against="device",
        seen=_trace_seen,
        limits=lambda cfg, place: "",
        word="profiler",
        needed=lambda run: run.config.profile_steps > 0,
        faults=_trace_faults,
        changes=TRACED,
        settings={"warmup_steps": 4},
        faster=False,
    ),
}


ON_CPU = FULL_SIZE | {"device": "cpu", "steps": 4, "warmup_steps": 1}  # where a step takes seconds
SWEPT = SYNTHETIC | {"steps": 20, "warmup_steps": 5}
FEW = SYNTHETIC | {"steps": 3, "warmup_steps": 1}
# The ladder as one GPU climbs it, and the same in the other formats, as their traces are named.
LARGE = {
    "device": rung("device", **FULL_SIZE),
    "amp": rung("amp", **FULL_SIZE),
    "channels_last": rung("channels_last", **FULL_SIZE),
    "tf32": rung("device", precision="tf32", **FULL_SIZE),
    "amp_fp16": rung("amp", precision="fp16", **FULL_SIZE),
    "channels_last_fp16": rung("channels_last", precision="fp16", **FULL_SIZE),
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
        number="1.1",
        notebook="day1_1_gpu",
        title="one script, one device",
        minutes=45,
        quiz="day1_1",
        checks=chosen(DAY1, "day1.device"),
        rungs=(("baseline", "fp32"), ("device", "fp32")),
        recordings=RECORDINGS["1.1"],
        jobs="6 (4 at once)",
        prepare="default set made; the script open in JupyterLab",
        stuck="editing without saving; TODO 1 is in three places, the last for images *and* "
        "labels; the dots of `predict`",
    ),
    Lab(
        number="1.2",
        notebook="day1_2_mixed_precision",
        title="half the bits, and what they cost",
        minutes=60,
        quiz="day1_2",
        checks=chosen(DAY1, "day1.amp", "day1.scaler"),
        rungs=(("device", "tf32"), ("amp", "bf16"), ("amp", "fp16")),
        recordings=RECORDINGS["1.2"],
        jobs="3 (2 at once)",
        prepare="which formats has the GPU units for? A V100 has fp16 only",
        stuck="TODO 2, the forgotten `enabled=`; TODO 3, the order of `scale`, `step`, `update`",
    ),
    Lab(
        number="1.3",
        notebook="day1_3_channels_last",
        title="the same numbers, in another order",
        minutes=45,
        quiz="day1_3",
        checks=chosen(DAY1, "day1.channels_last"),
        rungs=(("channels_last", "bf16"), ("channels_last", "fp16")),
        recordings=RECORDINGS["1.3"],
        jobs="2",
        prepare="nothing",
        stuck="shape against memory layout: only strides differ",
    ),
    Lab(
        number="1.4",
        notebook="day1_4_profiler",
        title="the profiler, and proof",
        minutes=60,
        quiz="day1_4",
        checks=chosen(DAY1, "day1.profile"),
        recordings=RECORDINGS["1.4"],
        jobs="2 (at once)",
        prepare="Perfetto needs the internet in the *browser*; the lab does without",
        stuck="reading two clocks; a traced step is slower, and is not timed",
    ),
)
