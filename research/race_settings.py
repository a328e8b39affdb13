"""Measure the accuracy of the race's scripts after every epoch, by setting.

    taskset -c 0-3 python -m research.race_settings GPU.jsonl --only gpu --limit 300
    taskset -c 4,5 python -m research.race_settings CPU.jsonl --only cpu --limit 300

The validation crops are read after every epoch, outside the timed part: use this to choose
settings, never to enter the race.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch

from course.config import Config
from course.data import crop_set
from course.data.images import normalised
from course.runs.run import PROJECT
from race import tracks
from research.sweep import command

SCRIPTS = PROJECT / "solutions" / "race"
FULL_SIZE = {"SMALL": {}}
# Script, track, and the changes: fields of SETTINGS, or in capitals the script's constants.
TRIALS: list[tuple[str, str, dict[str, Any]]] = [
    ("fast", "gpu", {}),
    ("plain", "gpu", {}),
    ("one_cycle", "gpu", {}),
    ("progressive", "gpu", {}),
    *(
        ("fast", "gpu", {"epochs": epochs, "WIDE": wide, "lr": lr})
        for epochs in (4, 6, 3)
        for wide in (64, 96, 32)
        for lr in (0.1, 0.2)
    ),
    ("fast", "gpu", {"batch_size": 1024, "steps": 64, "lr": 0.2}),
    ("fast", "gpu", {"batch_size": 256, "steps": 256}),
    ("fast", "gpu", {"epochs": 8}),
    ("plain", "gpu", {"epochs": 10}),
    ("plain", "gpu", {"lr": 0.3}),
    ("one_cycle", "gpu", {"epochs": 8}),
    ("one_cycle", "gpu", {"lr": 0.6}),
    ("progressive", "gpu", {"epochs": 8}),
    ("progressive", "gpu", {"epochs": 7, "SMALL": 0.3}),
    ("plain", "cpu", {}),
    ("one_cycle", "cpu", {}),
    ("progressive", "cpu", {}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160}),
    ("fast", "cpu", {"lr": 0.2}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2}),
    ("fast", "cpu", {"lr": 0.2, "SMALL": {"cpu": 0.25}}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.3, "steps": 160}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "WIDTH": {"cpu": 12}}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "WIDTH": {"cpu": 20}}),
    ("plain", "cpu", {"lr": 0.2}),
    ("plain", "cpu", {"epochs": 5}),
    ("one_cycle", "cpu", {"epochs": 5}),
    ("one_cycle", "cpu", {"lr": 0.1}),
    ("progressive", "cpu", {"epochs": 5}),
    ("progressive", "cpu", {"epochs": 5, "ema": 0.95, "SMALL": 0.4}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "VECTORS_LR": 0.3}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "MOMENTUM": 0.8}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "RISE": 0.1}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 320, "batch_size": 128}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "PAD": 2}),
    ("fast", "cpu", FULL_SIZE | {"lr": 0.2, "steps": 160, "label_smoothing": 0.2}),
]


def measure(script: str, track: str, changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run one training: event, seconds and accuracy when ready, after each epoch, at the end."""
    spec = importlib.util.spec_from_file_location(script, SCRIPTS / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in [key for key in changes if key.isupper()]:
        setattr(module, name, changes[name])
    fields = {key: value for key, value in changes.items() if not key.isupper()}
    config = tracks.find_track(track).config(module.SETTINGS[track] | fields, script, seed)
    module.main(run := Trial(config))
    return {"way": run.events}


class Trial:
    """A stand-in for the recorder that measures the accuracy of the weights at once."""

    rank = local_rank = 0
    world_size = 1

    def __init__(self, config: Config) -> None:
        self.config, self.events = config, []
        self.crops = crop_set.Crops(crop_set.ensure(), "val")
        self.began, self.untimed_s = time.perf_counter(), 0.0

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.began - self.untimed_s

    def ready(self) -> None:
        self.events.append(("ready", round(self._now(), 3), None))

    def keep_weights(self, net: Any, event: str = "epoch") -> None:
        now = self._now()
        self.events.append((event, round(now, 3), round(self._accuracy(net), 4)))
        self.untimed_s += self._now() - now

    def save_weights(self, net: Any) -> None:
        self.keep_weights(net, "end")

    def save_network(self, net: Any) -> None:
        pass

    @torch.no_grad()
    def _accuracy(self, net: Any) -> float:
        mode, device, correct = net.training, next(net.parameters()).device, 0
        net.eval()
        for images, labels in zip(self.crops.images.split(1024), self.crops.labels.split(1024)):
            correct += int((net(normalised(images.to(device))).argmax(1).cpu() == labels).sum())
        net.train(mode)
        return correct / len(self.crops)


if __name__ == "__main__":
    names = ("script", "track", "changes")
    command(
        __doc__,
        [dict(zip(names, trial)) | {"seed": s} for s in (0, 1) for trial in TRIALS],
        measure,
    )
