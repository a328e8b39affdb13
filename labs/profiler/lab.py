"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from dataclasses import replace

from course import Config, Run, rung
from course.lab import Exercise, Fact, Function, FunctionCheck, Lab, Recording, configs, expect
from course.runs import recordings
from labs.profiler import mechanism


def _describe_trace(run: Run) -> str:
    from course.analysis import read_trace

    expect(
        run.record.trace,
        "no trace was written: start() the profiler, step() it after every step, and give it "
        "on_trace_ready=run.save_trace",
    )
    found = read_trace(run.folder / run.record.trace)
    expect(found.operators["input_shapes"].map(len).any(), "no shapes: record_shapes=True")
    on_gpu = run.record.device == "cuda"
    expect(
        not (on_gpu and found.kernels.empty),
        "the trace has no GPU kernels: leave `activities` to the profiler",
    )
    return (
        f"traced steps: {run.config.profile_steps}; {len(found.operators):,} operators with "
        f"shapes, {len(found.kernels)} GPU kernels"
    )


TRACED = {"profile_steps": 1, "warmup_steps": 4}


def _traced(config: Config) -> Config:
    """Return a short config of the same training with one traced step, named by its differences."""
    name = recordings.TRACE + recordings.trace_name(config)
    return replace(config, rung=name, steps=8, warmup_steps=5, profile_steps=1)


def _limit_of() -> FunctionCheck:
    from labs.profiler import limits

    return FunctionCheck(limits.limit_of, limits.check_unknown, limits.check_variants)


STOPPED = Fact("place of profiler.stop()",
    lambda rank: "in the loop" if "SIGSEGV" in rank.error else "after the loop",
    "after it, profiler.step() fails: stop the profiler after the last epoch")  # fmt: skip
EXERCISES = {
    "profiler": Exercise(
        title="a step is traced, and the measured ones are not slowed",
        configs=({}, {"profile_steps": 2, "warmup_steps": 5}, {"profile_steps": 1}),
        calls=("course.checks.dry_runs:tracing",),
        causes=(STOPPED,),
        rung="device",
        against="device",
        describe=_describe_trace,
        changes=TRACED,
        settings={"warmup_steps": 4},
        faster=False,
    ),
}

LAB = Lab(
    title="what limits a step",
    minutes=95,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"profiler.limit_of": Function("what limits a step, from its trace", _limit_of)},
    recordings=(
        Recording("trace", [_traced(config) for config in configs.GPU_RUNGS.values()]),
        Recording(
            "notebook",
            [rung("device", warmup_steps=4), rung("device", warmup_steps=4, profile_steps=1)],
        ),
    ),
    jobs="2 (at once)",
    prepare="Perfetto needs the internet in the *browser*; the lab does without",
    stuck="reading two clocks; a traced step is slower, and is not timed",
)
