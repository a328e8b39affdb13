"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from typing import Any

from course import Config, Run, rung
from course.lab import (
    FULL_SIZE,
    NOT_APPLICABLE,
    Exercise,
    Function,
    FunctionCheck,
    Lab,
    Recording,
    configs,
    expect,
)
from labs.compile import mechanism


def _describe_compiled(run: Run) -> str:
    compiled = run.record.evidence.compiled
    expect(any(compiled.graphs), "no graph was compiled: call what `torch.compile(…)` returns")
    for reason, times in compiled.breaks.items():
        expect(
            False,
            f"a graph breaks, and Python continues in between: {reason} ({times} times). Take it "
            f"out of what is compiled; torch._dynamo.explain shows the line",
        )
    counts = [x for x in (compiled.warmed_up, *compiled.graphs) if x is not NOT_APPLICABLE]
    expect(
        len({*counts}) == 1,
        f"graphs were compiled again: there were {counts} one after the other. Something that the "
        f"compiler took for constant changed; TORCH_LOGS=recompiles shows what",
    )
    count, epochs = counts[-1], len(compiled.graphs)
    graphs = "one graph" if count == 1 else f"{count} graphs"
    return f"{graphs} without a break, compiled once and used in {epochs} epochs"


# Two epochs, to notice graphs that are compiled again in each. The first step compiles.
COMPILED: dict[str, Any] = {"epochs": 2, "steps": 8, "warmup_steps": 4, "budget_s": 0.0}
EXERCISES = {
    "compile": Exercise(
        title="the compiler writes the kernels of the network that trains",
        rung="compile",
        calls=("course.checks.dry_runs:agreeing",),
        causes=mechanism.FACTS[:1],
        against="fused",
        describe=_describe_compiled,
        on_cpu="a CPU compiles for longer than this check trains",
        configs=(
            {"rung": "fused"},
            {"compile": "max-autotune-no-cudagraphs"},
            {"compile": "default"},
        ),
        settings=COMPILED,
        full_size=FULL_SIZE | {"epochs": 2, "steps": 30},  # else a GPU waits for images
    ),
}


def _one_graph() -> FunctionCheck:
    from labs.compile import verify

    return FunctionCheck(verify.forward, verify.check_outputs, verify.check_graph)


REPEATED = "-again"  # ends the label of a run that finds its kernels in PyTorch's cache


def mode_config(mode: str, batch_size: int, repeated: bool = False) -> Config:
    """Return the config of ResNet-50 in one of the compiler's modes; "" does not compile.

    A mode with CUDA graphs records them in the first steps, which warm-up excludes.
    """
    settings = FULL_SIZE | {"batch_size": batch_size, "steps": 80, "warmup_steps": 30}
    name = f"mode-{mode or 'eager'}-{batch_size}{REPEATED * repeated}"
    return rung("compile", **settings, compile=mode, rung=name)


# Without max-autotune, which was still searching for kernels after six minutes.
MODES = (
    mode_config("", 256),
    mode_config("default", 256),
    mode_config("default", 256, repeated=True),
    mode_config("", 64),
    mode_config("default", 64),
    mode_config("reduce-overhead", 64),
    mode_config("reduce-overhead", 256),
)

LAB = Lab(
    title="torch.compile, a compiler that writes kernels",
    minutes=85,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"compile.forward": Function("one graph, compiled once", _one_graph)},
    rungs=(("fused", "bf16"), ("compile", "bf16")),
    recordings=(
        Recording("throughput", [rung(name, **configs.ON_CPU) for name in ("fused", "compile")]),
        Recording("compiler", MODES),
    ),
    jobs="3, of 4 runs",
    prepare="a C++ compiler on the nodes (`module load gcc`); "
    "`TORCHINDUCTOR_CACHE_DIR` on a disk that all of them share, one folder per user",
    stuck="keep what `torch.compile` returns",
)
