"""Images that are stored as bytes: nothing is decoded, the system maps what is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course.data.default_set import DataError
from course.data.formats import convert
from course.data.images import one_thread


class Raw:
    """A split of a set that was converted to raw bytes, as torchvision shows a folder of files.

    Args:
        folder: what `convert.convert("raw")` gave.
        split: "train" or "val".
        transform: makes a training image of bytes of shape (3, 256, 256).

    Raises:
        DataError: the folder holds no such images.
    """

    def __init__(
        self, folder: Path, split: str, transform: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        about = convert.index(folder, "raw")
        parts = about["splits"][split]["parts"]
        self.classes, self.transform = about["classes"], transform
        self._paths = [[folder / name for name in sorted(part["files"])] for part in parts]
        self._ends = np.array([*accumulate(part["images"] for part in parts)])
        self._opened: dict[int, list[Any]] = {}  # by each process for itself

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        part = int(np.searchsorted(self._ends, index, side="right"))
        images, labels = self._part(part)
        at = index - int(self._ends[part])  # counted from the part's end
        image = torch.from_numpy(np.array(images[at])).permute(2, 0, 1)
        return self.transform(image), int(labels[at])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """The images of a batch, as DataLoader asks for them."""
        with one_thread():
            return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": {}}  # or all that is mapped would be sent

    def _part(self, number: int) -> list[Any]:
        if number not in self._opened:
            self._opened[number] = [mapped(path) for path in self._paths[number]]
        return self._opened[number]


def mapped(path: Path) -> np.ndarray:
    """The array in a file, which the system reads where it is used.

    Raises:
        DataError: the file is damaged or gone; the message names it.
    """
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): delete its folder, and make it again"
        ) from error
