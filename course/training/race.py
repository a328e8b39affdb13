"""Write a racing run's results for the referee: times, joules, weights, and its own network."""

from __future__ import annotations

import copy
import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course.runs.files import complete_file
from course.training.attempts import attempt
from course.training.energy import counter

NETWORK = "network.pt2"  # the computation of an entry's own network, without its weights
EXAMPLE_IMAGES = 2  # PyTorch treats a batch of one image as a constant
INTERMEDIATE_WEIGHTS = "on_the_way.pt"  # weights at the marks, written after the race's time


class Watch:
    """Times a run from the beginning of its `recording()` until its weights are written.

    It also counts the joules of this process's GPU, if the GPU has a counter.

    Args:
        start: from `time.perf_counter`.
        on_gpu: whether the run's config requests an accelerator.
        number: of the GPU, among those that this process can use.
    """

    def __init__(self, start: float, on_gpu: bool, number: int) -> None:
        self._start = start
        self.device = torch.device("cpu")
        if on_gpu and torch.cuda.is_available():
            self.device = torch.device("cuda", number if number < torch.cuda.device_count() else 0)
        self._read = attempt("energy", counter, self.device)
        self._joules = self._joules_now()
        self._marks: dict[str, Any] = {"on_the_way": []}
        self._weights: list[dict[str, torch.Tensor]] = []

    def ready(self) -> None:
        """Mark the end of the preparation: data, network, compiling."""
        self._marks["ready_s"] = self._now()["seconds"]

    def keep(self, net: nn.Module) -> None:
        """Store the time and a copy of the weights; a copy on the device is fast."""
        self._marks["on_the_way"].append(self._now())
        weights = {name: value.clone() for name, value in net.state_dict().items()}
        self._weights.append(weights)

    def stop(self) -> dict[str, Any]:
        """Stop the time, and return the record's entry for the race.

        The last call counts, because the referee tests the weights that were written last.
        """
        self._marks |= self._now()
        return self._marks

    def end(self) -> dict[str, Any]:
        """Return the entry for the race; stop the time if no weights were written."""
        return self._marks if "seconds" in self._marks else self.stop()

    def write(self, folder: Path) -> None:
        """Write the weights that were kept."""
        on_host = [
            {name: value.cpu() for name, value in weights.items()} for weights in self._weights
        ]
        with complete_file(folder / INTERMEDIATE_WEIGHTS) as file:
            torch.save(on_host, file)

    def _now(self) -> dict[str, float | None]:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
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
