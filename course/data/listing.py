"""The images of a split: where each one is, and its class, in arrays that processes share.

A folder of 1.28 million images takes minutes to list on a shared disk, and a Python list of their
names takes 289 MB in each process. So a list of a large folder is stored as a NumPy file, which all
processes map into memory, and it is used until one of the folders changes.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from course.data.folders import DataError, subfolders, target_folder
from course.runs.files import complete_file

# Of files that are images.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
STORED_FROM = 20_000  # images; smaller folders are listed at once
CLOCK_NS = 2_000_000_000  # a folder that changed at most this time ago could change unnoticed
THREADS = 16  # that list folders: shared disks answer each one slowly, and many at once


class Listing(Sequence):
    """Images that are files in folders, or parts of larger files such as tar files.

    An item is a pair: the image's path (of a part: "FILE: NAME", for messages), and its class.

    Args:
        root: of the set.
        classes: their names, in the order of their numbers.
        containers: the folders, or the larger files, below root.
        rows: an array with the columns container, label and name; for parts of files also offset
            and length in bytes. `table` makes one.
        stamps: a number for each container, which changes with it.
        stored: the file that contains all this, if there is one.
    """

    def __init__(
        self,
        root: Path,
        classes: list[str],
        containers: list[str],
        rows: np.ndarray,
        stamps: list[int] | None = None,
        stored: Path | None = None,
    ) -> None:
        self.root, self.classes, self.containers = root, classes, containers
        self.rows = rows if stored else _compact(rows)
        self.stamps = stamps if stamps is not None else stamp_all(root, containers)
        self.stored = stored

    @property
    def in_files(self) -> bool:
        """Whether images are parts of larger files."""
        return "offset" in self.rows.dtype.names

    @property
    def labels(self) -> np.ndarray:
        return self.rows["label"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[str, int]:
        row = self.rows[index]
        folder = os.path.join(self.root, self.containers[row["container"]])
        name = os.fsdecode(row["name"])
        return f"{folder}: {name}" if self.in_files else f"{folder}/{name}", int(row["label"])

    def read(self, index: int) -> bytes:
        """Return the bytes of an image's file.

        Raises:
            OSError: it cannot be read, or its container ends before it.
        """
        if not self.in_files:
            with open(self[index][0], "rb", buffering=0) as file:
                return file.read()
        row = self.rows[index]
        with open(os.path.join(self.root, self.containers[row["container"]]), "rb", 0) as file:
            data = os.pread(file.fileno(), int(row["length"]), int(row["offset"]))
        if len(data) < row["length"]:
            raise OSError(f"it has {len(data)} bytes instead of {row['length']}")
        return data

    def name_in(self, split: str, index: int) -> str:
        """Return the name that the image gets in a folder with a folder per class."""
        row = self.rows[index]
        container, name = self.containers[row["container"]], os.fsdecode(row["name"])
        folder = f"{split}/{self.classes[row['label']]}"
        is_inside = not self.in_files and f"{container}/".startswith(f"{folder}/")
        return f"{container if is_inside else folder}/{name}"

    def save(self, path: Path, listed_ns: int = 0) -> None:
        """Write it to a file: an array, for `numpy.load`, and after it the rest as JSON."""
        rest = {
            "classes": self.classes,
            "containers": self.containers,
            "stamps": self.stamps,
            "listed_ns": listed_ns,
        }
        text = json.dumps(rest).encode()
        with complete_file(path) as file:
            np.save(file, self.rows)
            file.write(text + len(text).to_bytes(8, "little"))

    @classmethod
    def load(cls, path: Path, root: Path) -> tuple[Listing, int]:
        """Map a file from `save` into memory; return also when it was listed.

        Raises:
            DataError: it is no such file.
        """
        try:
            with path.open("rb") as file:
                file.seek(-8, os.SEEK_END)
                end, size = file.tell(), int.from_bytes(file.read(8), "little")
                file.seek(end - size)
                rest = json.loads(file.read(size))
                file.seek(0)
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                rows = np.memmap(file, dtype, "r", file.tell(), shape).view(np.ndarray)
            listed_ns = rest.pop("listed_ns")
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} cannot be read ({type(error).__name__}: {error}): copy it again, or "
                f"convert the set again"
            ) from error
        return cls(root, rows=rows, stored=path, **rest), listed_ns

    def __getstate__(self) -> dict[str, Any]:
        # A process that gets this maps the file, too; otherwise all rows would be pickled.
        return self.__dict__ | ({"rows": None} if self.stored else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.stored:
            loaded, _ = self.load(self.stored, self.root)
            if loaded.stamps != self.stamps:
                raise DataError(f"{self.root} changed while it was in use: start the run again")
            self.rows = loaded.rows


def table(
    container: Any, label: Any, name: Sequence[bytes], offset: Any = None, length: Any = None
) -> np.ndarray:
    """Return the rows of a listing; arguments are sequences, or one value for all rows."""
    names = np.array(name, dtype=bytes)
    columns = [("container", "<i4"), ("label", "<i4"), ("name", names.dtype)]
    columns += [] if offset is None else [("offset", "<i8"), ("length", "<i8")]
    rows = np.empty(len(names), columns)
    rows["container"], rows["label"], rows["name"] = container, label, names
    if offset is not None:
        rows["offset"], rows["length"] = offset, length
    return rows


def _compact(rows: np.ndarray) -> np.ndarray:
    """Return the rows with the smallest integers that hold them."""
    return rows.astype(
        [
            (
                name,
                rows.dtype[name]
                if name == "name"
                else np.min_scalar_type(rows[name].max(initial=0)),
            )
            for name in rows.dtype.names
        ]
    )


def concatenate(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate rows whose names differ in length."""
    columns = tables[0].dtype.descr
    longest = max(rows.dtype["name"].itemsize for rows in tables)
    columns[2] = ("name", f"S{longest}")
    result, end = np.empty(sum(map(len, tables)), columns), 0
    for rows in tables:
        begin, end = end, end + len(rows)
        result[begin:end] = rows
    return result


def stamp_all(root: Path, containers: Iterable[str]) -> list[int]:
    """Return a number for each container that changes with it; -1 if it is missing."""

    def stamp(name: str) -> int:
        try:
            status = os.stat(root / name)
        except OSError:
            return -1
        return status.st_size if stat.S_ISREG(status.st_mode) else status.st_mtime_ns

    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(stamp, containers)]


def list_folder(root: Path, split: str) -> Listing:
    """Return the images of root/split, which has a folder per class.

    Hidden files and folders are skipped. Of links to a folder that the class already has, or that
    contains it, none is followed. The list of a large folder is stored next to the conversions.

    Raises:
        DataError: the folder, a class or its images are missing; the message names it.
    """
    names = class_folders(root, split)
    if len(names) * len(os.listdir(root / split / names[0])) < STORED_FROM:
        return _walk(root, split, names)
    path = target_folder("listing", root.resolve()) / f"{split}.npy"
    if listing := _load_current(path, root):
        return listing
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", mode=0o600):  # of several ranks, one lists the folder
            if listing := _load_current(path, root):
                return listing
            print(f"listing {root / split}, once", file=sys.stderr)
            listed_ns = time.time_ns()
            _walk(root, split, names).save(path, listed_ns)
            return Listing.load(path, root)[0]
    except OSError as error:
        print(f"the list of {root / split} cannot be stored: {error}", file=sys.stderr)
        return _walk(root, split, names)


def _load_current(path: Path, root: Path) -> Listing | None:
    """Return the stored list of a folder, unless the folder has changed since."""
    try:
        listing, listed_ns = Listing.load(path, root)
    except DataError:  # there is none, or it is damaged
        return None
    is_settled = max(listing.stamps) + CLOCK_NS < listed_ns
    is_same = listing.stamps == stamp_all(root, listing.containers)
    return listing if is_settled and is_same else None


def class_folders(root: Path, split: str) -> list[str]:
    """Return the names of the class folders in root/split, sorted; there is at least one.

    Raises:
        DataError: there is none.
    """
    folder = root / split
    if names := subfolders(folder):
        return names
    problem = f"{folder} has no class folders" if folder.is_dir() else f"no folder {folder}"
    raise DataError(
        f"{problem}: data_root must contain train/ and val/, each with one folder a class, as "
        f"ImageNet has it; course data --from {root} reads other forms"
    )


def _walk(root: Path, split: str, names: list[str]) -> Listing:
    # First the split's folder, which has no images: its time changes if a class is added.
    containers, tables, empty = [split], [], []

    def walk(name: str) -> list[tuple[str, list[str]]]:
        return _files_in(str(root / split), name)

    def walk_all() -> Iterator[list[tuple[str, list[str]]]]:
        with ThreadPoolExecutor(THREADS) as pool:
            for begin in range(0, len(names), THREADS):  # or it would keep names of all classes
                yield from pool.map(walk, names[begin : begin + THREADS])

    try:
        for label, inside in enumerate(walk_all()):
            before = len(tables)
            for folder, files in inside:
                if images := [os.fsencode(name) for name in files if is_image(name)]:
                    tables.append(table(len(containers), label, images))
                containers.append(os.path.relpath(folder, root))
            empty += [names[label]] if len(tables) == before else []
    except OSError as error:
        raise DataError(f"{root / split} cannot be read: {error}") from error
    if empty:
        raise DataError(
            f"{root / split} is incomplete: no image was found in the classes {', '.join(empty)}"
        )
    return Listing(root, names, containers, concatenate(tables))


def _files_in(root: str, name: str) -> list[tuple[str, list[str]]]:
    """Return the folders in a class's folder, sorted, and the names of their files, sorted.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    real = Path(os.path.realpath(root))
    visited = {str(folder) for folder in (real, *real.parents)}
    files = []
    for folder, inside, names in os.walk(os.path.join(root, name), True, refuse, followlinks=True):
        if (target := os.path.realpath(folder)) in visited:
            inside.clear()
            continue
        visited.add(target)
        inside[:] = sorted(path for path in inside if not is_hidden(path))
        files.append((folder, sorted(names)))
    return sorted(files)


def is_hidden(path: str) -> bool:
    """Return whether the last part of a path begins with a dot."""
    return os.path.basename(path).startswith(".")


def is_image(path: str) -> bool:
    """Return whether this is an image's name that is not hidden, as macOS's ._x.JPEG would be."""
    return path.lower().endswith(EXTENSIONS) and not is_hidden(path)


def check_classes(root: Path, train: Sequence[str], val: Sequence[str]) -> None:
    """Raise DataError if the splits have different classes."""
    if train != val:
        differing = sorted({*train} ^ {*val})[:5]
        raise DataError(f"train/ and val/ in {root} differ in their class folders: {differing}")


def list_shards(folder: Path, split: str) -> Listing:
    """Return the images of a split in a folder of shards.

    Raises:
        DataError: a shard is missing, or is not the one that the index describes.
    """
    if not (folder / f"{split}.npy").exists():
        raise DataError(
            f"{folder} has no {split}.npy, which lists its images: make the shards again with "
            f"course data --as shards, because an earlier version made them, or copy all files"
        )
    listing, _ = Listing.load(folder / f"{split}.npy", folder)
    sizes = stamp_all(folder, listing.containers)
    for name, size, expected in zip(listing.containers, sizes, listing.stamps):
        if size != expected:
            problem = "is missing" if size < 0 else f"has {size:,} bytes"
            raise DataError(
                f"{folder / name} {problem}, and the set's index expects {expected:,} bytes: copy "
                f"the set again, or make it again with course data --from … --to {folder}"
            )
    return listing
