"""Lab 3.4: how it is seen that the network is compiled, and what is recorded of the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks import dry_runs as rehearsals
from course.checks.lab import FULL_SIZE, Mechanism, Place
from course.config import Config, rung
from course.runs.run import Run


def _compiled_faults(run: Run, against: Run) -> Iterator[str]:
    seen = run.record.evidence.get("compiled")
    if not seen:  # of an older recording, or the config asks for none
        return
    graphs, breaks = seen["graphs"], seen["breaks"]
    if not any(graphs):
        cause = next(rehearsals.compiling(run.script.read_text(), run.config), "")
        yield cause or (
            "no graph was compiled: the network that `torch.compile(…)` gives back must be the one "
            "that trains"
        )
    elif breaks:
        reason, times = next(iter(breaks.items()))
        yield (
            f"a graph breaks, and Python goes on in between: {reason} ({times} times). Take it out "
            f"of what is compiled; torch._dynamo.explain says the line"
        )
    elif len({*(courses := _course(seen))}) > 1:
        yield (
            f"graphs were compiled again: in turn there were {_listed(courses)}. What the "
            f"compiler took for constant has changed, or its memory was cleared; "
            f"TORCH_LOGS=recompiles says what"
        )


def _course(seen: dict[str, Any]) -> list[int]:
    """How many graphs there were after warm-up, if that is known, and after each epoch."""
    warmed_up = seen.get("warmed_up")
    return [*([] if warmed_up is None else [warmed_up]), *seen["graphs"]]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _compiled_seen(run: Run) -> str:
    seen = run.record.evidence["compiled"]
    count, epochs = seen["graphs"][-1], len(seen["graphs"])
    graphs = "one graph" if count == 1 else f"{count} graphs"
    return f"{graphs} without a break, compiled once and used in {epochs} epochs"


def _compiled_limits(cfg: Config, place: Place) -> str:
    if place.device != "cpu":
        return ""
    return "a processor compiles for longer than this check trains"


# Two epochs, or nobody sees that a graph is made anew in each. The first step compiles.
COMPILED: dict[str, Any] = {"epochs": 2, "steps": 8, "warmup_steps": 4, "budget_s": 0.0}
COMPILER_CHECKS = {
    "day3.compile": Mechanism(
        title="the compiler writes the kernels of the network that trains",
        todo=16,
        rung="compile",
        against="fused",
        seen=_compiled_seen,
        limits=_compiled_limits,
        word="torch.compile",
        faults=_compiled_faults,
        rehearsed=rehearsals.compiling,
        settings=COMPILED,
    ),
}

AGAIN = "-again"  # behind a label: the same once more, where PyTorch's cache on disk is full
MODE_BATCHES = (256, 64)
TIMED_STEPS = {"steps": 80, "warmup_steps": 30}  # a mode with CUDA graphs records them in some


def in_mode(mode: str, batch_size: int, again: bool = False) -> Config:
    """A step of ResNet-50 in one of the compiler's modes; "" leaves it to PyTorch's own kernels."""
    name = f"mode-{mode or 'eager'}-{batch_size}{AGAIN * again}"
    own = FULL_SIZE | TIMED_STEPS | {"batch_size": batch_size}
    return rung("compile", **own, compile=mode, rung=name)


def modes() -> Iterator[Config]:
    """Without max-autotune, which had not found its kernels after six minutes."""
    large, small = MODE_BATCHES
    yield from (in_mode(mode, large) for mode in ("", "default"))
    yield in_mode("default", large, again=True)
    yield from (in_mode(mode, small) for mode in ("", "default", "reduce-overhead"))
    yield in_mode("reduce-overhead", large)
