"""Curves of a run while it trains: TensorBoard, Trackio or Weights & Biases."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing.util import Finalize
from typing import Any

from course.training.hooks import Hook

PROJECT = "course"  # in Trackio and Weights & Biases
FLUSH_S = 30  # until TensorBoard's file has what was logged
STEP_VALUES = ("loss", "lr", "step_s", "load_s")  # of the rows of steps.jsonl, which has more
Log = Callable[[dict[str, float], int], None]


class Tracker(Hook):
    """Logs rank 0's steps and the results of epochs, to the tool that `config.tracker` names.

    Names and step numbers are those of `course export`. Training continues without the tool if it
    is not installed. Nothing is sent over the network, unless the variable WANDB_MODE is "online".
    """

    _log: Log | None = None
    _close: Callable[[], None] = staticmethod(lambda: None)

    def begin(self, device: Any, clock: Any, first: int) -> None:
        name = self.recorder.config.tracker
        try:
            self._log, self._close = OPENERS[name](self.recorder, first)
        except ImportError as error:
            print(f"tracker={name!r}: {error}. pip install {name}. Training continues", flush=True)

    def steps_finished(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._send("step", {key: row.get(key) for key in STEP_VALUES}, row["step"])

    def epoch(self, number: int, values: Mapping[str, Any]) -> None:
        self._send("epoch", values, number * self.recorder.config.steps - 1)

    def end(self, status: str) -> None:
        self._close()

    def _send(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        numbers = {
            f"{prefix}/{key}": value
            for key, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        if self._log and numbers:
            self._log(numbers, step)


def _open_tensorboard(recorder: Any, first: int) -> tuple[Log, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    folder = recorder.folder / "tensorboard"
    # What an earlier process logged after its last checkpoint is computed again.
    writer = SummaryWriter(folder, purge_step=first, flush_secs=FLUSH_S)
    # Not only at the run's end: unlike atexit, this is also called in a process of a process.
    Finalize(None, writer.close, exitpriority=0)
    print(f"curves: tensorboard --logdir {folder}", flush=True)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _open_trackio(recorder: Any, first: int) -> tuple[Log, Callable[[], None]]:
    import trackio

    options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False, "resume": "allow"}
    run = trackio.init(
        PROJECT, name=recorder.folder.name, config=asdict(recorder.config), **options
    )
    print(f"curves: trackio show --project {PROJECT}", flush=True)
    return lambda values, step: run.log(values, step=step), trackio.finish


def _open_wandb(recorder: Any, first: int) -> tuple[Log, Callable[[], None]]:
    import wandb

    name, mode = recorder.folder.name, os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(
        project=PROJECT,
        id=name,
        name=name,
        dir=recorder.folder,
        config=asdict(recorder.config),
        mode=mode,
        resume="allow",
        settings=wandb.Settings(console="off", silent=True, disable_code=True),
    )
    print(f"curves: wandb, {mode}: {recorder.folder}/wandb", flush=True)
    return lambda values, step: run.log(values, step=step), run.finish


OPENERS = {"tensorboard": _open_tensorboard, "trackio": _open_trackio, "wandb": _open_wandb}
