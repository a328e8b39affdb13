"""Where sets of images are: the default set, and conversions of a set."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from course.runs.files import folder_from, read_dict

INDEX = "index.json"  # of a conversion
SPLITS = ("train", "val")
KINDS = ("shards", "small", "raw")  # of conversions


class DataError(RuntimeError):
    """The images cannot be used; the message names the file and the fix."""


def default_root() -> Path:
    """Return the folder of the set: the variable COURSE_DATA, or else the user's cache folder."""
    return folder_from("COURSE_DATA") or user_cache_path("make-training-fast") / "default-set-v1"


def target_folder(kind: str, root: Path) -> Path:
    """Return the folder of a set in a different format: next to the default set (COURSE_DATA)."""
    name = root.name
    if root != default_root().resolve():  # two sets may have the same name
        name += "-" + hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    return default_root().resolve().parent / f"{name}-{kind}"


def converted_folder(kind: str, root: Path) -> Path:
    """Return the folder of a set in another format: root itself, or the conversion of root.

    Raises:
        DataError: the set was not converted yet. That can take hours, so no run does it. Or its
            classes have changed since.
    """
    command = f"course data --from {shlex.quote(str(root))} --as {kind}"
    if read_index(root).get("kind") == kind:
        return root
    folder = target_folder(kind, root.resolve())
    about = read_index(folder)
    if not about:
        raise DataError(f"{root} was not converted yet: {command}")
    if (names := subfolders(root / "train")) and names != about["classes"]:
        raise DataError(
            f"the classes in {root} are no longer those of the {kind} in {folder}. Convert "
            f"the set again: {command}"
        )
    return folder


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones; [] if it is none.

    A folder such as .ipynb_checkpoints would be class 0, and shift all labels by one.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(x.name for x in entries if x.is_dir() and not x.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}") from error


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a conversion; return {} if the folder is none."""
    return read_dict(folder / INDEX)


def index(folder: Path) -> dict[str, Any]:
    """Read the index of a conversion: kind, classes, and for each split images, damaged, parts."""
    return json.loads((folder / INDEX).read_text())
