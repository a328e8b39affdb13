"""Write a racing run's results for the referee: times, joules, weights, and its own network."""

from __future__ import annotations

import copy
import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course.runs import complete_file
from course.training import Hook, attempt
from race.supervised_clock import BEGAN
from trainspeed.energy import counter

NETWORK = "network.pt2"  # the computation of an entry's own network, without its weights
EXAMPLE_IMAGES = 2  # PyTorch treats a batch of one image as a constant
INTERMEDIATE_WEIGHTS = "on_the_way.pt"  # weights at the marks, written after the race's time


class Clock(Hook):
    """Times a run from the beginning of its `recording()` until its weights are written.

    It also counts the joules of this process's GPU, if the GPU has a counter.
    """

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._start = time.perf_counter()
        self._device = torch.device("cpu")
        if recorder.config.device != "cpu" and torch.cuda.is_available():
            number = recorder.local_rank if recorder.local_rank < torch.cuda.device_count() else 0
            self._device = torch.device("cuda", number)
        self._read = attempt("energy", counter, self._device)
        self._joules = self._joules_now()
        self._marks: dict[str, Any] = {"on_the_way": []}
        self._weights: list[dict[str, torch.Tensor]] = []
        if recorder.folder:
            (recorder.folder / BEGAN).touch()

    def ready(self) -> None:
        """Mark the end of the preparation: data, network, compiling."""
        self._marks["ready_s"] = self._now()["seconds"]

    def keep_weights(self, net: nn.Module) -> None:
        """Store the time and a copy of the weights; a copy on the device is fast."""
        if self.recorder.rank > 0:
            return
        self._marks["on_the_way"].append(self._now())
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        self._weights.append(weights)

    def weights_saved(self) -> None:
        """Stop the time.

        The last call counts, because the referee tests the weights that were written last.
        """
        self._marks |= self._now()

    def save_network(self, net: nn.Module) -> None:
        if self.recorder.folder:
            write_network(net, self.recorder.config.image_px, self.recorder.folder)

    def end(self, status: str) -> None:
        """Add the times to the record; without them, the referee refuses the run."""
        if status != "ok":
            return
        if "seconds" not in self._marks:  # the script wrote no weights
            self.weights_saved()
        if self.recorder.folder:
            self._write_weights(self.recorder.folder)
            if "machine" not in self.recorder.values:
                self.recorder.set(**self.recorder.describe(self._device))
        self.recorder.set(extra={"race": self._marks})

    def _write_weights(self, folder: Path) -> None:
        """Write the weights that were kept."""
        on_host = [
            {name: value.cpu() for name, value in weights.items()} for weights in self._weights
        ]
        with complete_file(folder / INTERMEDIATE_WEIGHTS) as file:
            torch.save(on_host, file)

    def _now(self) -> dict[str, float | None]:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        seconds = time.perf_counter() - self._start
        joules = self._joules_now()
        used = None if None in (joules, self._joules) else joules - self._joules
        return {"seconds": seconds, "joules": used}

    def _joules_now(self) -> float | None:
        return attempt("energy", self._read) if self._read else None


def write_network(net: nn.Module, image_px: int, folder: Path) -> None:
    """Export what the network computes in evaluation mode, for any number of images.

    `torch.export` traces it once, in fp32 on the host, with images as `normalised` returns them.

    Raises:
        torch.export errors: the network cannot be traced, for instance if it reads values.
    """
    network = copy.deepcopy(net).to("cpu", torch.float32).eval()
    images = torch.zeros(EXAMPLE_IMAGES, 3, image_px, image_px)
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=1, max=65_536)
        program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()  # on a full disk, PyTorch's own writer would abort the process
    torch.export.save(program, buffer)
    with complete_file(folder / NETWORK) as file:
        file.write(buffer.getbuffer())
