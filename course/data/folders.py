"""The folders of a set of images: which are classes, which files are images, which are hidden."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Files that are images, as torchvision has it: to import it takes seconds.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def class_names(folder: str | Path, hidden: list[str]) -> list[str]:
    """The names of a split's class folders, sorted; hidden ones are appended to `hidden`.

    A folder such as .ipynb_checkpoints would be class 0, and shift every label by one.
    """
    names = sorted(each.name for each in os.scandir(folder) if each.is_dir())
    hidden += [os.path.join(folder, name) for name in names if name.startswith(".")]
    return [name for name in names if not name.startswith(".")]


def is_image(path: str, root: str, hidden: list[str]) -> bool:
    """True for an image file below `root`; one that is hidden, or in a hidden folder, is none.

    Such a file, for instance ._x.JPEG, which macOS writes beside x.JPEG, is appended to `hidden`.
    """
    if not path.lower().endswith(SUFFIXES):
        return False
    if f"{os.sep}." in path[len(root) :]:
        hidden.append(path)
        return False
    return True


def images_below(folder: Path, hidden: list[str]) -> Iterator[Path]:
    """A class's image files, also those in linked folders, as torchvision finds them."""
    for above, _, names in os.walk(folder, followlinks=True):
        for path in (os.path.join(above, name) for name in names):
            if is_image(path, str(folder), hidden) and os.path.isfile(path):
                yield Path(path)


def report_hidden(root: str | Path, hidden: Sequence[str]) -> None:
    """Print on standard error how many hidden files and folders were skipped, if any."""
    if hidden:
        print(
            f"{root}: skipped {len(hidden)} hidden files and folders, such as {hidden[0]}",
            file=sys.stderr,
        )
