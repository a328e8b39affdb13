"""Trainings of this lab: pipelines, recorded at full size and live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from course import Config, Run, launch, rung
from course.checks.exercises import open_todos
from course.jobs import find_script
from course.lab import SYNTHETIC, configs, read_utf8

BATCH = 96  # images of a pipeline's update: 48 per GPU, all of which GPipe keeps
# Large enough that a pass takes longer than the messages around it. GPipe has 1F1B's bubble.
LIVE: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_pico_rw_224",
    "device": "cpu",
    "collective_timeout_s": 30,
    "pipeline": "gpipe",
    "image_px": 128,
    "batch_size": 16,
    "micro_batch": 4,
    "steps": 6,
    "warmup_steps": 2,
    "lr": 1e-4,
    "precision": "fp32",
    "budget_s": 0.0,
}


def train_splits(script: str, splits: Mapping[str, str], site: str = "local") -> dict[str, Run]:
    """Train CoAtNet-pico as a pipeline of two ranks on the CPU, once per split.

    With the course's script, if TODO `pipeline_stages` of this one is open.

    Args:
        splits: the config's stage_split, by name.
    """
    if "pipeline_stages" in open_todos(read_utf8(find_script(script)), "train_parallel.py"):
        print(f"TODO `pipeline_stages` of {script} is open: this trains with the solution.")
        script = "solutions/train_parallel.py"
    return {
        name: launch(script, rung("pipeline", **LIVE, stage_split=split), site=site, gpus=2).wait()
        for name, split in splits.items()
    }


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
