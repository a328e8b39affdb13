"""Write runs for TensorBoard, Trackio and Weights & Biases.

`python -m labs.gpu.trackers TOOL FOLDER` reads the folders of runs from standard
input, one per line. It is a separate process because these tools keep threads, files and variables
until it ends.
"""

from __future__ import annotations

import json
import math
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from course import Config, Run
from course.lab import all_settings
from course.runs import Record

PROJECT = "course"  # in Trackio and Weights & Biases
# Fields of a record that are exported elsewhere, or too long for a table.
NOT_SUMMARY = ("rung", "config", "epochs", "versions", "hardware", "evidence", "logs", "schema")
CONSTANT = "epoch/val_images"
EVENTS = "events.out.tfevents.*"  # TensorBoard's files
SHOWN_FIELDS = ("rung", "batch_size", "lr", "seed")  # TensorBoard shows them even if default
TAG_LENGTH = 64  # the longest tag in Weights & Biases


@dataclass(frozen=True)
class Row:
    """The values after a step: its number from 0, the time, and values by name."""

    step: int
    at_s: float  # since 1970: the run's start and the steps so far, without validation
    values: dict[str, float]


@dataclass(frozen=True)
class Content:
    """The part of a run that tracking tools store."""

    name: str
    started_s: float
    config: dict[str, Any]  # hyperparameters
    summary: dict[str, Any]  # results: numbers with units in their names, and a few words
    tags: list[str]
    rows: list[Row]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the summary."""
        return {key: value for key, value in self.summary.items() if _is_number(value)}


def content(run: Run) -> Content:
    """Read the parts of a run that are exported; it must have a record."""
    record = run.record
    started_s = datetime.fromisoformat(record.started_at).timestamp() if record.started_at else 0.0
    config = {**record.config, "script": run.source, "gpus": record.gpus}
    config |= {f"version_{name}": version for name, version in record.versions.items()}
    summary = {
        key: value
        for key, value in vars(record).items()
        if key not in NOT_SUMMARY and (_is_number(value) or (isinstance(value, str) and value))
    }
    rows = list(_rows(run, record, started_s))
    return Content(run.name, started_s, config, summary, tags(run), rows)


def tags(run: Run) -> list[str]:
    """Return words to find a run by: rung or search, purpose, status, site, data."""
    request = run.launched
    kind = request["trial"]["study"] if "trial" in request else request.get("rung", "")
    words = (kind, run.purpose, run.status, request.get("site", ""), run.config.data)
    return [*dict.fromkeys(word for word in words if word)]


def _rows(run: Run, record: Record, started_s: float) -> Iterator[Row]:
    """Yield the values of each step; an epoch's results are part of its last step."""
    steps = run.steps.to_dict("records")
    last = {row["epoch"]: row["step"] for row in steps}  # the last step of each epoch
    results = {
        last[epoch_index]: epoch
        for epoch_index, epoch in enumerate(record.epochs)
        if epoch_index in last
    }
    at_s, before = started_s, -1
    for row in steps:
        skipped, before = row["step"] - before, row["step"]  # a long run writes every k-th step
        at_s += row["step_s"] * skipped if _is_number(row.get("step_s")) else 0.0
        values = {f"step/{key}": v for key, v in row.items() if key not in ("step", "epoch")}
        values |= {f"epoch/{key}": v for key, v in results.get(row["step"], {}).items()}
        values = {key: v for key, v in values.items() if _is_number(v) and key != CONSTANT}
        yield Row(row["step"], at_s, values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def write_tensorboard(folder: Path, content: Content) -> None:
    """Write a run's event files, and replace earlier ones. Other files are kept."""
    from torch.utils.tensorboard import SummaryWriter

    for path in (folder / content.name).glob(EVENTS):
        path.unlink()
    defaults = all_settings(Config())
    fields = {
        name: value
        for name, value in content.config.items()
        if name in SHOWN_FIELDS or value != defaults.get(name, value)
    }  # TensorBoard has no room for sixty columns
    with SummaryWriter(folder / content.name) as writer:
        for row in content.rows:
            for name, value in row.values.items():
                writer.add_scalar(name, value, row.step, row.at_s)
        ended_s = content.rows[-1].at_s if content.rows else content.started_s
        numbers = {f"summary/{name}": value for name, value in content.numbers.items()}
        writer.add_hparams(fields, numbers, run_name=".")
        texts = {"tags": ", ".join(content.tags), "config": json.dumps(content.config)}
        texts |= {key: value for key, value in content.summary.items() if isinstance(value, str)}
        for name, text in texts.items():
            writer.add_text(name, text, 0, ended_s)


def write_trackio(folder: Path, content: Content) -> None:
    """Write a run into the folder's SQLite file, and replace an earlier run of the same name.

    Trackio reads the folder from TRACKIO_DIR when it is imported. It has neither tags nor a
    summary, so they become part of the config.
    """
    import trackio

    assert Path(trackio.utils.TRACKIO_DIR) == folder
    with suppress(ValueError):  # there is no project yet
        for run in trackio.Api().runs(PROJECT):
            if run.name == content.name:
                run.delete()
    config = {**content.config, "tags": ", ".join(content.tags)}
    config |= {f"summary_{name}": value for name, value in content.summary.items()}
    options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    run = trackio.init(PROJECT, name=content.name, config=config, **options)
    for row in content.rows:
        run.log(row.values, step=row.step)
    if not content.rows:  # a run without steps would not be listed
        run.log(content.numbers, step=0)
    trackio.finish()


def write_wandb(folder: Path, content: Content) -> None:
    """Write an offline run, and replace an earlier one of the same name. Nothing is sent."""
    import wandb

    for path in folder.glob(f"wandb/offline-run-*-{content.name}"):
        shutil.rmtree(path)
    run = wandb.init(
        project=PROJECT,
        id=content.name,
        name=content.name,
        dir=folder,
        config=content.config,
        tags=[tag[:TAG_LENGTH] for tag in content.tags],
        mode="offline",
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            # Nothing about this machine: the run may be from a different one.
            disable_git=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_viewer=True,
            x_save_requirements=False,
            x_start_time=content.started_s,
        ),
    )
    for row in content.rows:
        run.log(row.values, step=row.step)
    run.summary.update(content.summary)
    run.finish()


WRITERS = {"tensorboard": write_tensorboard, "trackio": write_trackio, "wandb": write_wandb}

if __name__ == "__main__":
    tool, folder = sys.argv[1:]
    for run in pickle.load(sys.stdin.buffer):
        WRITERS[tool](Path(folder), content(run))
