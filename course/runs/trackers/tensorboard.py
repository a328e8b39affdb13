"""To TensorBoard: event files, a folder a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from course.config import Config
from course.runs.trackers.content import Content

EVENTS = "events.out.tfevents.*"  # as TensorBoard names its files
ALWAYS = ("batch_size", "lr", "seed")  # hyperparameters that are shown, whatever they are
SUMMARY = "summary/"  # in front of the record's numbers: one value a run


def write(folder: Path, content: Content) -> None:
    """Write a run's event files, in place of those that are there. Nothing else is removed."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    for known in (folder / content.name).glob(EVENTS):
        known.unlink()
    with SummaryWriter(folder / content.name) as writer:
        for row in content.rows:
            for name, value in row.values.items():
                writer.add_scalar(name, value, row.step, row.at_s)
        ended_s = content.rows[-1].at_s if content.rows else content.began_s
        numbers = {SUMMARY + name: value for name, value in content.numbers.items()}
        for each in hparams(
            _asked(content), numbers
        ):  # first names, then values, then that it is over
            writer.file_writer.add_summary(each, walltime=content.began_s)
        for name, value in numbers.items():
            writer.add_scalar(name, value, 0, ended_s)
        words = {"tags": ", ".join(content.tags), "config": json.dumps(content.config)}
        words |= {key: each for key, each in content.summary.items() if isinstance(each, str)}
        for name, text in words.items():
            writer.add_text(name, text, 0, ended_s)


def _asked(content: Content) -> dict[str, Any]:
    """What of the config differs from the defaults: TensorBoard has no room for sixty columns."""
    usual = asdict(Config())
    named = ("rung", *ALWAYS)
    return {
        name: value
        for name, value in content.config.items()
        if name in named or (name in usual and value != usual[name])
    }
