"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import Run, rung
from course.lab import Exercise, Function, FunctionCheck, Lab, Recording, configs, expect


def _describe_device(run: Run) -> str:
    if run.record.device == "cpu":
        return "on a fake accelerator, weights, images and labels are all on it"
    devices = run.record.evidence.devices
    expect({*devices} == {run.record.device}, f"the convolutions ran on {' and '.join(devices)}")
    return f"all {sum(devices.values())} convolutions ran on {run.record.device}"


EXERCISES = {
    "device": Exercise(
        title="the step computes on the accelerator",
        configs=({},),
        calls=("course.checks.dry_runs:moving", "course.checks.dry_runs:agreeing"),
        rung="device",
        against="baseline",
        describe=_describe_device,
        on_cpu="this machine has no accelerator",
    ),
}


def _review() -> FunctionCheck:
    from labs.gpu import review

    return FunctionCheck(review.train, review.check_weights, review.check_mistakes)


def _timing() -> FunctionCheck:
    from labs.gpu import timing

    return FunctionCheck(timing.device_time_s, timing.check_seconds, timing.check_calls)


LAB = Lab(
    title="training on a GPU",
    minutes=105,
    exercises=EXERCISES,
    functions={
        "gpu.timing": Function("a timing function that is right on a GPU", _timing),
        "gpu.review": Function("a loop without five mistakes", _review),
    },
    rungs=(("baseline", "fp32"), ("device", "fp32")),
    recordings=(
        Recording("throughput", [rung("baseline", **configs.ON_CPU), configs.GPU_RUNGS["device"]]),
        Recording("notebook", [rung("device"), rung("baseline")]),
    ),
    jobs="2",
    prepare="default set made; the script open in JupyterLab",
    stuck="editing without saving; TODO device is in three places, the last for images *and* "
    "labels; in the review, cells that are edited but not run again",
)
