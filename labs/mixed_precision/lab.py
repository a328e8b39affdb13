"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import Config, Run, rung
from course.lab import (
    NOT_APPLICABLE,
    Exercise,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    Place,
    Recording,
    configs,
    expect,
    facts,
)
from labs.mixed_precision import mechanism

TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _describe_amp(run: Run) -> str:
    precision, types = run.config.precision, run.record.evidence.forward_types
    forward, backward = sum(types.values()), sum(run.record.evidence.backward_types.values())
    expect(
        {*types} == {TYPES[precision]},
        f"the config requests {precision}, and the convolutions ran in {' and '.join(types)}: "
        f"enter `torch.autocast(…)` with dtype= and enabled= that follow cfg.precision",
    )
    return f"{forward} convolutions forward and {backward} backward in {precision}; weights fp32"


def _describe_scaler(run: Run) -> str:
    overflow = run.record.evidence.overflow
    expect(
        overflow is NOT_APPLICABLE or overflow.skipped is not False,
        "the step with the planted overflow was not skipped: call scaler.step(optimizer) instead "
        "of optimizer.step()",
    )
    if overflow is NOT_APPLICABLE:
        return "no overflow planted"
    return "the step with the planted overflow was skipped"


def _amp_limits(cfg: Config, place: Place) -> str:
    if not place.half_units:
        return f"{place.machine} has no 16-bit hardware, so there is nothing to gain"
    return place.emulation(cfg)


def _scaled_step() -> FunctionCheck:
    from labs.mixed_precision import scaling

    return FunctionCheck(scaling.scaled_step, scaling.check_updates, scaling.check_overflow)


LOGGED = Fact("recorded loss",
    facts.if_complete(lambda rank: "scaled" if rank.steps["loss"].iloc[0] > 100 else "as it is"),
    "backward needs the scaled loss, and meter.lap the loss itself")  # fmt: skip
EXERCISES = {
    "amp": Exercise(
        title="the forward pass runs under autocast",
        configs=(
            {"rung": "device"},
            {"precision": "bf16"},
            {"rung": "channels_last", "precision": "fp16"},
        ),
        calls=("course.checks.dry_runs:casting", "course.checks.dry_runs:agreeing"),
        rung="amp",
        against="device",
        describe=_describe_amp,
        limits=_amp_limits,
        emulated={"precision": "bf16"},
    ),
    "grad_scaler": Exercise(
        title="fp16 gradients are scaled",
        configs=(
            {"precision": "bf16", "overflow_step": 0},
            {},
            {"precision": "fp32", "overflow_step": 0},
            {"precision": "tf32", "overflow_step": 0},
        ),
        calls=("course.checks.dry_runs:agreeing",),
        causes=(LOGGED,),
        rung="amp",
        against="device",
        describe=_describe_scaler,
        limits=_amp_limits,
        changes={"precision": "fp16", "overflow_step": 1},
        settings={"warmup_steps": 4},
    ),
}

LAB = Lab(
    title="mixed precision, and what 16 bits cost",
    minutes=100,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"precision.scaled_step": Function("a scale that adapts to overflows", _scaled_step)},
    rungs=(("device", "tf32"), ("amp", "bf16"), ("amp", "fp16")),
    recordings=(
        Recording(
            "throughput",
            [
                *(configs.GPU_RUNGS[name] for name in ("amp", "tf32", "amp_fp16")),
                rung("amp", **configs.ON_CPU),
            ],
        ),
        Recording("notebook", [rung("amp"), rung("amp", rung="fp16", precision="fp16")]),
    ),
    jobs="2 (at once), and 2 for the scaler",
    prepare="for which formats does the GPU have units? A T4 has fp16 only",
    stuck="amp: the forgotten `enabled=`; scaled_step: `/=` works in place, `/` doesn't",
)
