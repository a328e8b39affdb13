"""The clock of a racing run: seconds and joules since it began, and the weights on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course.runs.files import whole_file
from course.training.energy import counter

ON_THE_WAY = "on_the_way.pt"  # weights at the marks, written once the time is taken


class Watch:
    """Takes the time of a run, from the beginning of its `recording()` to its written weights.

    Joules are those of this process's GPU in the same time; without a counter there are none.

    Args:
        began: by `time.perf_counter`.
        on_gpu: does the run's config ask for an accelerator?
        number: of the GPU, among those that this process sees.
    """

    def __init__(self, began: float, on_gpu: bool, number: int) -> None:
        self._began = began
        self.device = torch.device("cpu")
        if on_gpu and torch.cuda.is_available():
            self.device = torch.device("cuda", number if number < torch.cuda.device_count() else 0)
        self._read: Callable[[], float] | None = counter(self.device)
        self._joules = self._read() if self._read else 0.0
        self._marks: dict[str, Any] = {"on_the_way": []}
        self._weights: list[dict[str, torch.Tensor]] = []

    def ready(self) -> None:
        """What came before the first step is over: data, network, compiling."""
        self._marks["ready_s"] = self._now()["seconds"]

    def keep(self, net: nn.Module) -> None:
        """Note the time, and the weights as they are now: a copy on the device costs little."""
        self._marks["on_the_way"].append(self._now())
        self._weights.append({name: each.clone() for name, each in net.state_dict().items()})

    def stop(self) -> dict[str, Any]:
        """The weights are written: what the record has of the race.

        The last stop counts, since the weights that it leaves are those that are judged.
        """
        self._marks |= self._now()
        return self._marks

    def end(self) -> dict[str, Any]:
        """The run ends: a time is taken now only if no weights were written before."""
        return self._marks if "seconds" in self._marks else self.stop()

    def write(self, folder: Path) -> None:
        """Write the weights that were kept on the way."""
        kept = [{name: each.cpu() for name, each in one.items()} for one in self._weights]
        with whole_file(folder / ON_THE_WAY) as file:
            torch.save(kept, file)

    def _now(self) -> dict[str, float | None]:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        seconds = time.perf_counter() - self._began
        return {"seconds": seconds, "joules": self._read() - self._joules if self._read else None}
