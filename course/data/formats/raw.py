"""Images stored as raw bytes: nothing is decoded, and the system maps the files into memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course.data import folders
from trainspeed.resources import one_thread


class Raw:
    """A split of a set that was converted to raw bytes, with torchvision's interface.

    Args:
        folder: from `convert.convert_set("raw")`.
        split: "train" or "val".
        transform: of bytes of shape (3, 256, 256).

    Raises:
        DataError: the folder has no such images.
    """

    def __init__(
        self, folder: Path, split: str, transform: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        about = folders.index(folder)
        parts = about["splits"][split]["parts"]
        self.classes, self.transform = about["classes"], transform
        self._paths = [[folder / name for name in sorted(part["files"])] for part in parts]
        if odd := [path for part in self._paths for path in part if not path.is_file()]:
            raise folders.DataError(f"{odd[0]} is not a file: convert the set again")
        self._ends = np.array([*accumulate(part["images"] for part in parts)])
        self._arrays: dict[int, list[Any]] = {}  # mapped by each process separately

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        if part not in self._arrays:
            self._arrays[part] = [np.load(path, mmap_mode="r") for path in self._paths[part]]
        images, labels = self._arrays[part]
        position = index - int(self._ends[part])  # counted from the part's end
        image = torch.from_numpy(np.array(images[position])).permute(2, 0, 1)
        return self.transform(image), int(labels[position])

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return the images of a batch, for DataLoader."""
        with one_thread():
            return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}  # otherwise all arrays would be pickled
