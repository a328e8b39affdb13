"""The folders of a set of images: classes, images, and hidden files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# As in torchvision, which takes seconds to import.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def class_names(folder: str | Path, hidden: list[str]) -> list[str]:
    """Return the names of a split's class folders, sorted; append hidden folders to `hidden`.

    A folder such as .ipynb_checkpoints would be class 0, and shift all labels by one.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    hidden += [os.path.join(folder, name) for name in names if name.startswith(".")]
    return [name for name in names if not name.startswith(".")]


def is_image(path: str, root: str, hidden: list[str]) -> bool:
    """Return whether this is an image file below `root` that is not hidden.

    Hidden images, for instance ._x.JPEG, which macOS writes next to x.JPEG, and images in hidden
    folders are appended to `hidden`.
    """
    if not path.lower().endswith(SUFFIXES):
        return False
    if f"{os.sep}." in path[len(root) :]:
        hidden.append(path)
        return False
    return True


def images_below(folder: Path, hidden: list[str]) -> Iterator[Path]:
    """Yield a class's image files, also those in linked folders, as torchvision finds them."""
    for parent, _, names in os.walk(folder, followlinks=True):
        for path in (os.path.join(parent, name) for name in names):
            if is_image(path, str(folder), hidden) and os.path.isfile(path):
                yield Path(path)


def report_hidden(root: str | Path, hidden: Sequence[str]) -> None:
    """Print on standard error how many hidden files and folders were skipped, if any."""
    if hidden:
        print(
            f"{root}: skipped {len(hidden)} hidden files and folders, such as {hidden[0]}",
            file=sys.stderr,
        )
