"""The rooflines of configs and runs, with trainspeed's costs and ceilings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pandas as pd
import torch

from course.config import Config, from_dict
from course.runs.recordings import load, origin
from course.runs.run import Run, rows_of
from course.training.memory_prediction import fake_step
from course.training.recorder import Recorder
from trainspeed.costs import Cost, OperatorCost, count_operators, total
from trainspeed.formats import FORMATS
from trainspeed.memory import update_once
from trainspeed.rates import Ceilings, measure_ceilings
from trainspeed.roofline_model import Roofline


def operators(config: Config) -> pd.DataFrame:
    """Count what each operator costs per image of a training step, the most bytes first.

    Columns: operator, calls (per step), gflop and megabytes (per image), flop_per_byte. Only the
    settings that change the cost are used, with synthetic data. What counts is in
    `trainspeed.costs.count_operators`.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    images = config.batch_size
    return pd.DataFrame(
        {
            "operator": cost.operator,
            "calls": cost.calls,
            "gflop": cost.flop / images / 1e9,
            "megabytes": cost.bytes / images / 1e6,
            "flop_per_byte": cost.flop_per_byte,
        }
        for cost in _count(config)
    )


def _count(config: Config) -> list[OperatorCost]:
    config.require_images("the roofline")
    return _count_once(
        Config(
            model=config.model,
            image_px=config.image_px,
            batch_size=config.batch_size,
            precision="bf16" if config.is_half else "fp32",  # both 16-bit formats have two bytes
            channels_last=config.channels_last,
            data="synthetic",
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    )


@lru_cache(maxsize=32)
def _count_once(config: Config) -> list[OperatorCost]:
    with fake_step(config) as step:
        update_once(step.optimizer)  # creates the optimizer's state
        return count_operators(step.run)


def step_cost(config: Config) -> Cost:
    """Return FLOP and bytes per training image, the sums over `operators`.

    The update's share falls as the batch grows, because weights are moved once per step.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    return total(_count(config)).per(config.batch_size)


def fusion_traffic(table: pd.DataFrame) -> pd.DataFrame:
    """Return megabytes per image by operator: eager, and if a compiler fuses a ResNet's operators.

    A fused operator is part of the kernel before or after it. Then ReLU moves nothing; an addition
    moves one of its two inputs, a third of its traffic; and ReLU's backward moves nothing if its
    mask is recomputed from what the kernel reads anyway, or else the mask, also a third. A
    compiler's schedule may move more.

    Args:
        table: from `operators`, indexed by operator.

    Returns:
        By operator; columns: eager, least, most.
    """
    eager = table["megabytes"]
    shares = {"relu_": 0.0, "threshold_backward": 0.0, "add": 1 / 3, "add_": 1 / 3}
    least = eager * [shares.get(name, 1.0) for name in eager.index]
    masks = eager.where(eager.index == "threshold_backward", 0.0) / 3
    return pd.DataFrame({"eager": eager, "least": least, "most": least + masks})


def ceilings(device: torch.device) -> Ceilings:
    """Measure this machine's ceilings in fp32, which takes a few seconds."""
    name = Recorder(None).describe(device)["machine"]  # as in records
    return replace(measure_ceilings(device), machine=name)


def recorded_ceilings(machine: str) -> Ceilings:
    """Return recorded ceilings of a machine: medians, which hardly vary on a GPU.

    Raises:
        ValueError: the machine has no recordings, or none of ceilings.
    """
    saved = load(machine)
    if "ceilings" not in saved:
        raise ValueError(f"no ceilings are recorded for {machine!r}: take those of nvidia-h100")
    rates = saved["ceilings"]
    return Ceilings(
        machine=saved["machine"].partition(",")[0],  # without its CPU
        flop_per_s={name: rates[name]["tflop_per_s"] * 1e12 for name in FORMATS},
        bytes_per_s=rates["copy_tb_per_s"] * 1e12,
        source=origin(saved),
    )


def points(runs: Iterable[Run] | pd.DataFrame, ceilings: Ceilings) -> pd.DataFrame:
    """Compare runs with a machine's ceilings, one row per run.

    Columns: rung, precision, batch_size, images_per_s, flop_per_byte, flop_per_s (reached),
    compute_images_per_s and memory_images_per_s (the two bounds), bound ("memory" or
    "compute", the lower one), share (reached, of the lower bound), machine. What a share above 1
    means is in `trainspeed.roofline_model.Roofline.share`.

    Args:
        runs: finished runs, or a table of records from `recorded`. Left out are runs that are not
            ok, of a different machine, in a precision without a ceiling, or with `compile` or
            `algebra`, which move fewer bytes than this counts.

    Raises:
        ValueError: no run is left.
    """
    records = rows_of(runs)
    table = [
        _point(row, ceilings)
        for row in records
        if row["status"] == "ok"
        and not row["config"].get("context")  # of a GPT
        and row.get("images_per_s")
        and row["machine"].startswith(ceilings.machine)
        and row["config"]["precision"] in ceilings.flop_per_s
        and not any(row["config"].get(name) for name in ("compile", "algebra"))
    ]
    if not table:
        places = {
            f"{row['config']['precision']} on {row.get('machine') or '?'} ({row['status']})"
            for row in records
        }
        raise ValueError(
            f"no run can be compared with the ceilings of {ceilings.machine} in "
            f"{', '.join(ceilings.flop_per_s)}; the runs are {'; '.join(sorted(places)) or 'none'}"
        )
    return pd.DataFrame(table)


def _point(row: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    config, images_per_s = from_dict(row["config"]), row["images_per_s"]
    roof = Roofline(step_cost(config), ceilings, config.precision)  # of an image
    return {
        "rung": config.rung,
        "precision": config.precision,
        "batch_size": config.batch_size,
        "images_per_s": images_per_s,
        "flop_per_byte": roof.cost.flop_per_byte,
        "flop_per_s": images_per_s * roof.cost.flop,
        "compute_images_per_s": 1 / roof.compute_s,
        "memory_images_per_s": 1 / roof.memory_s,
        "bound": roof.bound,
        "share": roof.share(1 / images_per_s),
        "machine": row["machine"],
    }
