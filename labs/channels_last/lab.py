"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import Run, rung
from course.lab import Exercise, Function, FunctionCheck, Lab, Recording, configs, expect
from labs.channels_last import mechanism


def _describe_layout(run: Run) -> str:
    evidence = run.record.evidence
    inputs, weights = evidence.input_layouts, evidence.weight_layouts
    for name, counts in (("input", inputs), ("weight", weights)):
        layouts = {*counts} - {"either"}
        expect(layouts == {"NHWC"}, f"{name} layouts: {' and '.join(sorted(layouts))}")
    return (
        f"inputs of {inputs['NHWC']} convolutions in NHWC, and all weights in which the two "
        f"layouts differ ({weights['NHWC']})"
    )


def _first_lost() -> FunctionCheck:
    from labs.channels_last import lost_layout

    return FunctionCheck(
        lost_layout.first_lost, lost_layout.check_places, lost_layout.check_hooks_removed
    )


EXERCISES = {
    "channels_last": Exercise(
        title="weights and images are stored in channels_last",
        configs=({"rung": "amp"}, {"rung": "channels_last"}),
        calls=("course.checks.dry_runs:agreeing",),
        rung="channels_last",
        against="amp",
        describe=_describe_layout,
        limits=lambda cfg, place: place.emulation(cfg),
    ),
}

LAB = Lab(
    title="memory layout and channels_last",
    minutes=105,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"layout.first_lost": Function("the layer that loses the layout", _first_lost)},
    rungs=(("channels_last", "bf16"), ("channels_last", "fp16")),
    recordings=(
        Recording(
            "throughput",
            [
                configs.GPU_RUNGS["channels_last"],
                configs.GPU_RUNGS["channels_last_fp16"],
                rung("channels_last", **configs.ON_CPU),
            ],
        ),
        Recording("notebook", [rung("channels_last")]),
    ),
    jobs="2",
    prepare="nothing",
    stuck="shape against memory layout: only strides differ",
)
