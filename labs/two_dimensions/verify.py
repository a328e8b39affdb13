"""The check of a learner's choose_plan: against ours, and against recorded runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pandas as pd

from course import Run, recorded_runs
from labs.saving_memory.verify import KNEE
from labs.two_dimensions.plans import (
    SHARE,
    STORED,
    Machines,
    Network,
    Plan,
    choose_plan,
    memory_bytes,
    peak_gib,
    possible_plans,
    step_s,
)

ChoosePlan = Callable[[Network, Machines, int, float], Plan | None]
GPT2 = Network(weights=124_000_000, layers=12, heads=12, width=768, tokens=1024)
GPT2_XL = Network(weights=1_560_000_000, layers=48, heads=20, width=1600, tokens=1024)
LLAMA_8B = Network(weights=8_000_000_000, layers=32, heads=32, width=4096, tokens=2048)
NODE = Machines(gpus=8, per_node=8, memory_gib=80, tflop_s=400, node_gb_s=400, network_gb_s=25)
LLAMA_2B = LLAMA_8B._replace(weights=2_000_000_000, layers=16)
SLOW = NODE._replace(gpus=2, per_node=1, memory_gib=21.5, network_gb_s=1)
# Network, machines, sequences of an update, and sequences that keep a GPU busy. Some limits are
# between the memory of right plans and that of plans with too few or too many gathered blocks.
EXAMPLES: dict[str, tuple[Network, Machines, int, float]] = {
    "124 million weights, 8 GPUs": (GPT2, NODE, 256, 1),
    "124 million, 8 GPUs of 11 GiB": (GPT2, NODE._replace(memory_gib=11), 256, 1),
    "124 million, 8 GPUs of 10 GiB": (GPT2, NODE._replace(memory_gib=10), 256, 1),
    "124 million, 16 sequences, 2 GPUs, knee 32": (GPT2, NODE._replace(gpus=2), 16, 32),
    "124 million, one GPU": (GPT2, NODE._replace(gpus=1), 8, 1),
    "8 billion, 8 GPUs": (LLAMA_8B, NODE, 64, 1),
    "8 billion, 8 GPUs of 37 GiB": (LLAMA_8B, NODE._replace(memory_gib=37), 64, 1),
    "8 billion, 2 sequences, 8 GPUs": (LLAMA_8B, NODE, 2, 1 / 8),
    "8 billion, 2 sequences, 8 GPUs of 22 GiB": (LLAMA_8B, NODE._replace(memory_gib=22), 2, 1 / 8),
    "8 billion, 2 sequences, 8 GPUs of 20 GiB": (LLAMA_8B, NODE._replace(memory_gib=20), 2, 1 / 8),
    "8 billion, 2 sequences, 8 GPUs, knee 8": (LLAMA_8B, NODE, 2, 8),
    "8 billion, 2 nodes of 8 GPUs": (LLAMA_8B, NODE._replace(gpus=16), 8, 1),
    "2 billion, 2 nodes of one GPU, 1 GB/s": (LLAMA_2B, SLOW, 64, 1),
    "8 billion, 8 GPUs of 8 GiB": (LLAMA_8B, NODE._replace(memory_gib=8), 8, 1),
}
PURPOSES = {"nvidia-h100-x2": "parallel", "nvidia-h200-x2": "sharding"}  # of CoAtNet-5's runs
FAST_ENOUGH = 0.9  # of the fastest recorded run: the same plan has variants
# Network, machine with two GPUs, images or sequences of an update, GiB per GPU.
RECORDED = (
    ("CoAtNet-5", "nvidia-h100-x2", 48, 80),
    ("CoAtNet-5", "nvidia-h100-x2", 96, 80),
    ("CoAtNet-5", "nvidia-h200-x2", 48, 141),
    ("CoAtNet-5", "nvidia-h200-x2", 48, 24),
    ("GPT-2", "nvidia-h200-x2", 32, 141),
    ("GPT-2", "nvidia-h200-x2", 2, 141),
    ("GPT-2 XL", "nvidia-h200-x2", 32, 141),
    ("GPT-2 XL", "nvidia-h200-x2", 2, 141),
    ("GPT-2 XL", "nvidia-h200-x2", 2, 20),
)


def check_choices(function: ChoosePlan) -> str:
    """Compare the choices for several networks and machines with the solution's."""
    for name, case in EXAMPLES.items():
        result, expected = function(*case), choose_plan(*case)
        if repr(result) != repr(expected):  # tuples equal plans, and 2.0 equals 2
            raise AssertionError(f"{name}: {_problem(case, result, expected)}")
    return f"{len(EXAMPLES)} cases: 124 million to 8 billion weights, on 1 to 16 GPUs"


def _described(network: Network, plan: Plan, batch: int) -> str:
    stored, kept = (size / 2**30 for size in memory_bytes(network, plan, batch))
    passes = f" in {plan.passes} passes" * (plan.passes > 1)
    return f"{plan}{passes} (stored {stored:.3g} GiB, kept {kept:.3g} GiB)"


def _problem(
    case: tuple[Network, Machines, int, float], result: Plan | None, expected: Plan | None
) -> str:
    """Describe a wrong choice."""
    network, machines, batch, knee = case
    if result is None:
        return f"None, but {_described(network, expected, batch)} fits"
    if repr(result) not in map(repr, possible_plans(network, machines, batch)):
        return f"it returns {result!r}, expected one of lab.possible_plans(…), or None"
    words = _described(network, result, batch)
    limit, peak = machines.memory_gib, peak_gib(network, result, batch)
    if peak > SHARE * limit:
        advice = f"{words} needs {peak:.3g} of {limit:g} GiB, but a tenth must stay free"
        return advice + (", and nothing fits: return None" if not expected else "")
    times = [step_s(network, machines, plan, batch, knee) for plan in (result, expected)]
    other = _described(network, expected, batch)
    if times[0] > times[1]:
        return f"{words} takes {times[0] / times[1]:.2f} times as long as {other}, which fits"
    return f"{words} is as fast as {other}, which fits and comes first"


def check_recordings(function: ChoosePlan) -> str:
    """Check that recorded runs on two GPUs which fit are hardly faster than the choices."""
    table = recorded_choices(function)
    for row in table.itertuples():
        assert row.of_fastest >= FAST_ENOUGH, (
            f"{row.network}, {row.machine}, batch {row.batch}, {row.limit_gib} GiB: {row.choice} "
            f"reached {row.of_fastest:.0%} of the speed of {row.fastest}"
        )
    names = ", ".join(table.network.unique())
    return f"{names} on two GPUs, recorded: at least {table.of_fastest.min():.0%} of the fastest"


def recorded_choices(function: ChoosePlan = choose_plan) -> pd.DataFrame:
    """Judge a choice by recorded runs on two GPUs.

    Columns: network, machine, batch (images or sequences), limit_gib, choice, fastest (of the
    recorded plans that fit), of_fastest (the choice's speed, relative to it; 0 if no run that fits
    was recorded).
    """
    rows = []
    for case in RECORDED:
        name, machine, batch, limit = case
        network, runs = networks()[name], _runs(name, machine)
        speeds = _speeds(runs, batch, limit)
        plan = function(network, *_two_gpus(network, runs, batch, limit))
        choice, fastest = str(plan), speeds.idxmax()
        rows.append((*case, choice, fastest, speeds.get(choice, 0) / speeds[fastest]))
    columns = ["network", "machine", "batch", "limit_gib", "choice", "fastest", "of_fastest"]
    return pd.DataFrame(rows, columns=columns)


def networks() -> dict[str, Network]:
    """Return the recorded networks."""
    return {"CoAtNet-5": coatnet_5(), "GPT-2": GPT2, "GPT-2 XL": GPT2_XL}


@cache
def coatnet_5() -> Network:
    """Return a transformer that needs the FLOP and the memory of CoAtNet-5.

    Its blocks have different sizes, so the width is what one GPU's recorded peak gives.
    """
    (run,) = (run for run in recorded_runs("nvidia-h200", "sharding") if not run.config.shard)
    tokens, heads = (run.config.image_px // 16) ** 2, 40
    network = Network(687_000_000, layers=44, heads=heads, width=heads, tokens=tokens)
    activations = run.record.peak_gib - STORED * network.weights / 2**30
    narrow = peak_gib(network._replace(weights=0), Plan(1), run.config.batch_size)
    return network._replace(width=heads * round(activations / narrow))


@cache
def _runs(name: str, machine: str) -> list[Run]:
    """Return the runs of a network, by their time."""
    is_gpt = name.startswith("GPT")
    purpose = "mesh" if is_gpt else PURPOSES[machine]
    key, value = ("layers", networks()[name].layers) if is_gpt else ("model", "coatnet_5_224")
    return [
        run
        for run in recorded_runs(machine, purpose)
        if run.record.status == "ok"
        and getattr(run.config, key) == value
        and not run.config.profile_steps
        and not run.config.save_every
    ]


def _speeds(runs: list[Run], batch: int, limit_gib: float) -> pd.Series:
    """Return the images/s of each recorded plan that fits, of its fastest variant."""
    speeds: dict[str, float] = {}
    for run in runs:
        cfg, peak = run.config, max(rank["peak_gib"] for rank in run.ranks)
        if cfg.batch_size != batch or peak > limit_gib:
            continue
        stages = 2 if getattr(cfg, "pipeline", "") else 1
        plan = Plan(2 // cfg.tensor // stages, bool(cfg.shard), cfg.tensor, stages)
        speeds[str(plan)] = max(run.record.images_per_s, speeds.get(str(plan), 0))
    return pd.Series(speeds)


def _two_gpus(
    network: Network, runs: list[Run], batch: int, memory_gib: float
) -> tuple[Machines, int, float]:
    """Return two GPUs of a node as fast as under DDP, the batch, and the knee."""
    times = {run.config.batch_size: run.record.step_s for run in runs if "ddp" in run.config.rung}
    largest, smallest = max(times), min(times)
    knee = float(KNEE)
    if largest > smallest:  # a pass below the knee takes as long as the smallest
        knee = largest / 2 * times[smallest] / times[largest]
    tflop_s = network.flop * max(largest / 2, knee) / times[largest] / 1e12
    return Machines(2, 2, memory_gib, tflop_s, node_gb_s=450, network_gb_s=50), batch, knee
