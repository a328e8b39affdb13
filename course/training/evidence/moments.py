"""What a training has in hand at a step: two that are one must have the same, to the bit."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course.config import Config
from course.runs.restarts import CHECKPOINTS, METADATA, interruptions, step_of
from course.training.evidence import shards
from course.training.evidence.renames import Naming, Saves
from course.training.interruption import Planted

FEW = 16  # steps of a run whose checkpoints are opened: of a long one they may be large
MUCH = 2**28  # bytes of weights, above which their bits are not looked at: it would take seconds


class Moments:
    """Notes for each step of the warm-up what it began with, and how a run was interrupted.

    Only where the config asks for the same bits again, or for checkpoints.
    """

    def __init__(self, folder: Path | None, config: Config, first: int) -> None:
        self._config, self._folder, self._first, self._step = config, folder, first, first
        self.planted = Planted(folder, config)
        self._rows: dict[str, dict[str, Any]] = {}
        self._hook: Any = None
        self._scale: Any = torch.amp.GradScaler.scale
        self._weights: list[torch.Tensor] = []
        self._saves = Saves()
        self._naming = Naming(folder / CHECKPOINTS if folder else None)
        self._found = self._there()

    def start(self) -> None:
        """Look from here to `stop`."""
        self._hook = register_optimizer_step_pre_hook(self._look)
        own, scale = self, self._scale

        def noted(scaler: torch.amp.GradScaler, *rest: Any) -> Any:
            own._note(scale=scaler.get_scale())
            return scale(scaler, *rest)

        torch.amp.GradScaler.scale = noted
        self._saves.start()
        self._naming.start()

    def stop(self) -> None:
        """Look no more."""
        self._hook.remove()
        torch.amp.GradScaler.scale = self._scale
        self._saves.stop()
        self._naming.stop()

    def begin(self, batch: Any, device: torch.device) -> None:
        """A step begins, with this batch."""
        if self._is_noted():
            images, labels = batch
            self._note(images=_bits([images, labels]), random=_random(device))

    def end_step(self) -> None:
        """A step is over."""
        self._step += 1
        self.planted.after_step(self._step)

    def _is_noted(self) -> bool:
        in_warm_up = self._step - self._first < self._config.warmup_steps
        return self._config.deterministic and in_warm_up

    def _note(self, **found: Any) -> None:
        if self._is_noted():
            self._rows.setdefault(str(self._step), {}).update(found)

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        self._weights = [each for group in groups for each in group["params"]]
        if not self._is_noted() or shards.size(self._weights) > MUCH:
            return
        states = [optimizer.state.get(weight, {}) for weight in self._weights]
        tensors = [each for state in states for each in state.values() if torch.is_tensor(each)]
        self._note(
            rate=float(groups[0]["lr"]), weights=_bits(self._weights), momentum=_bits(tensors)
        )

    def _there(self) -> list[dict[str, Any]]:
        place = self._folder / CHECKPOINTS if self._folder else None
        is_small = self._config.deterministic or self._config.epochs * self._config.steps <= FEW
        return inspect_checkpoints(place) if place and place.exists() and is_small else []

    def evidence(self) -> dict[str, Any]:
        """For the record.

        began_at: the steps that lay behind this process. found: the checkpoints that it met, left:
        those that are there now. interrupted: what was planted so far. moments: of each noted step,
        by number, what it began with. at_end: the bits of the weights now. saves: the names that
        were given to torch.save. renamed: of each name that a checkpoint got by a rename, whether
        it was on the disk by then.
        """
        known = interruptions(self._folder) if self._folder else []
        is_small = self._config.deterministic and shards.size(self._weights) <= MUCH
        return {
            "began_at": self._first,
            "found": self._found,
            "left": self._there(),
            "interrupted": known,
            "moments": self._rows,
            "at_end": _bits(self._weights) if is_small else None,
            "saves": self._saves.names,
            "renamed": self._naming.found,
        }


def _bits(tensors: list[torch.Tensor]) -> int:
    """A number that is another one where any bit of the tensors is."""
    found = 0
    for each in tensors:
        whole = each.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(whole.numpy(), found)
    return found


def _random(device: torch.device) -> int:
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return _bits(states)


def inspect_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Describe the checkpoints of a folder: name, step, and whether each can be read ("whole")."""
    rows = []
    for path in sorted(folder.rglob("*")):
        is_part = path.parent != folder and (path.parent / METADATA).exists()
        if is_part or (path.is_dir() and not (path / METADATA).exists()):
            continue
        try:
            if path.is_file():  # a learner's own, with any content
                torch.load(path, map_location="cpu", weights_only=False)
            is_whole = True
        except Exception:
            is_whole = False
        rows.append({"name": path.name, "step": step_of(path), "whole": is_whole})
    return rows
