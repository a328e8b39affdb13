"""Trainings of this lab: pipelines, recorded at full size and live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.checks.exercises import open_todos
from course.jobs import find_script
from course.lab import SYNTHETIC, configs, read_utf8

BATCH = 96  # images of a pipeline's update: 48 per GPU, all of which GPipe keeps
# Large enough that a pass takes longer than the launches and messages around it.
LIVE: dict[str, Any] = SYNTHETIC | {
    "model": "vit_tiny_patch16_224",
    "image_px": 128,
    "batch_size": 16,
    "steps": 6,
    "warmup_steps": 2,
    "lr": 1e-4,
    "precision": "fp32",
    "budget_s": 0.0,
}


def working_script(script: str) -> str:
    """Return the script if its TODOs about pipelines are filled, else the course's, and say so."""
    solution = "train_parallel.py"
    todos = sorted({33, 34} & open_todos(read_utf8(find_script(script)), solution))
    if not todos:
        return script
    numbers = " and ".join(map(str, todos))
    print(f"Open in {script}: TODO {numbers}. So this trains with solutions/{solution}.")
    return f"solutions/{solution}"


def pipeline_config(pipeline: str = "1f1b", micro_batches: int = 8, **settings: Any) -> Config:
    """Return the config of a short pipeline for two processes on any machine.

    Args:
        settings: further fields of the Config.
    """
    values = LIVE | {"pipeline": pipeline} | settings
    values["micro_batch"] = values["batch_size"] // micro_batches
    return rung("pipeline", **values)


def _recorded_pipeline(
    pipeline: str = "1f1b", micro_batches: int = 8, stage_split: str = ""
) -> Config:
    """Return the config of CoAtNet-5 in stages at full size."""
    words = ["pipe", pipeline, str(micro_batches)]
    settings = configs.COATNET_5 | {"batch_size": BATCH, "steps": 14, "warmup_steps": 6}
    if stage_split:
        words.append(f"cut-{stage_split}")
        settings["stage_split"] = stage_split
    settings |= {"pipeline": pipeline, "micro_batch": BATCH // micro_batches}
    return rung("pipeline", **settings, rung="-".join(words))


def recorded_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    for schedule in ("1f1b", "gpipe", "interleaved", "zero_bubble"):
        yield _recorded_pipeline(schedule), gpus
    yield _recorded_pipeline(stage_split="weights"), gpus
    yield _recorded_pipeline("1f1b", 4), gpus
    yield _recorded_pipeline("gpipe", 4), gpus
    yield _recorded_pipeline(micro_batches=2), gpus
    yield _recorded_pipeline(stage_split="20"), gpus
    yield _recorded_pipeline(micro_batches=16), gpus
    yield _recorded_pipeline("interleaved", 4), gpus
    yield _recorded_pipeline("zero_bubble", 4), gpus
    yield _recorded_pipeline(stage_split="16"), gpus
