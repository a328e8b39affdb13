"""Convert a set of images once, so that each training reads it faster.

The set is written in parts into a folder next to its final place, which is renamed when all parts
are complete. Complete parts are noted, so an interrupted conversion continues; results from images
that have changed since are deleted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from course.data import default_set
from course.data.default_set import DataError
from course.runs.files import UNFINISHED, complete_file, read_dict, write_atomically

INDEX = "index.json"
PLAN, DONE = "plan.json", "done"  # of an unfinished conversion
SPLITS = ("train", "val")
VERSION = 1
SEED = 0  # of the order of images in shards and raw bytes
MIN_PART, MAX_PARTS = 64, 1024  # images per part, and parts per split
SMALL_PX = 256  # the shorter side of small images: a training crop of 224 pixels can still move
QUALITY = 90  # of small JPEG files
FileTable = dict[str, dict[str, int]]  # bytes by file name


@dataclass(frozen=True)
class Source:
    """A file of the set: its path below the root, and the number of its class."""

    name: str
    label: int


@dataclass(frozen=True)
class Listing:
    """The images of a set's folder by split, and their digest."""

    root: Path
    classes: list[str]
    images: dict[str, list[Source]]
    digest: str  # of each file's name, size and modification time
    hidden: list[str]  # files and folders that are skipped


@dataclass(frozen=True)
class Part:
    """Images of a split that are converted together."""

    split: str
    number: int
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        return f"{self.split}-{self.number:05d}"


def convert(kind: str, root: Path | None = None, *, skip_damaged: bool = False) -> Path:
    """Return the folder of a set in a different format; convert it first if needed.

    Args:
        kind: "shards": tar files of the unchanged JPEG files; "small": JPEG files of 256 pixels;
            "raw": bytes that need no decoding.
        root: a folder with train/ and val/, each with a folder per class; None: the default set.
        skip_damaged: leave out images that cannot be decoded; the index names them.

    Raises:
        ValueError: there is no such kind.
        DataError: the set cannot be read, or the folder cannot be written; complete parts are kept.
    """
    if kind not in KINDS:
        raise ValueError(f"images cannot be stored as {kind!r}: choose {', '.join(KINDS)}")
    from course.data.images import report_hidden  # here: torchvision takes 2 s

    listing = list_images(default_set.ensure() if root is None else root.expanduser().resolve())
    report_hidden(listing.root, listing.hidden)
    plan = {
        "kind": kind,
        "version": VERSION,
        "source": str(listing.root),
        "listing": listing.digest,
    }
    return default_set.ensure_complete(
        target_folder(kind, listing.root),
        is_complete=lambda folder: _is_complete(folder, plan),
        fill=lambda folder: _fill(folder, listing, plan, skip_damaged),
        what=f"{kind} images",
        marker=(INDEX, "kind"),
        resumed=True,
    )


def target_folder(kind: str, root: Path) -> Path:
    """Return the folder of a set in a different format: next to the default set (COURSE_DATA)."""
    name = root.name
    if root != default_set.default_root().resolve():  # two sets may have the same name
        name += "-" + hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return default_set.default_root().resolve().parent / f"{name}-{kind}"


def converted_folder(kind: str, root: Path) -> Path:
    """Return the folder of a set in another format.

    Raises:
        DataError: the set was not converted yet. That can take hours, so no run does it.
    """
    folder = target_folder(kind, root.resolve())
    if not (folder / INDEX).exists():
        raise DataError(f"{root} was not converted yet: course data --as {kind} --data-root {root}")
    return folder


def index(folder: Path, kind: str = "") -> dict[str, Any]:
    """Read the index of a conversion: kind, classes, and for each split images, parts, files.

    Raises:
        DataError: the folder has no index, or one of a different kind.
    """
    about = read_dict(folder / INDEX)
    if not about or kind not in ("", about["kind"]):
        raise DataError(
            f"{folder} contains {about.get('kind', 'no converted images')}: make "
            f"{kind or ' or '.join(KINDS)} by course data --as {kind or 'KIND'} --data-root FOLDER"
        )
    return about


def list_images(root: Path) -> Listing:
    """List the images of a set's folder, without opening any.

    Raises:
        DataError: a split or a class is missing or has no image; the message names it.
    """
    from course.data.images import check_classes, open_folder  # here: torchvision takes 2 s

    splits = {split: open_folder(root, split, report=False) for split in SPLITS}
    classes = splits["train"].classes
    check_classes(root, classes, splits["val"].classes)
    images: dict[str, list[Source]] = {}
    hidden = [path for files in splits.values() for path in files.hidden]
    digest = hashlib.sha256()
    for split, files in splits.items():
        images[split] = []
        for path, label in files.samples:
            if not os.path.isfile(path):  # a link without a target
                continue
            status, name = os.stat(path), Path(path).relative_to(root).as_posix()
            images[split].append(Source(name, label))
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return Listing(root, classes, images, digest.hexdigest(), hidden)


def _parts(kind: str, listing: Listing) -> Iterator[Part]:
    """Divide a set into parts, in random order if a part becomes one file."""
    for split, sources in listing.images.items():
        order = range(len(sources))
        if kind != "small":
            order = np.random.default_rng([SEED, split == "val"]).permutation(len(sources))
        size = max(MIN_PART, -(-len(sources) // MAX_PARTS))
        for number, begin in enumerate(range(0, len(sources), size)):
            yield Part(split, number, tuple(sources[i] for i in order[begin : begin + size]))


def _fill(partial: Path, listing: Listing, plan: dict[str, Any], skip_damaged: bool) -> None:
    if not _is_complete(partial, plan):
        if read_dict(partial / PLAN) != plan:  # of different images, or a different version
            shutil.rmtree(partial)
            (partial / DONE).mkdir(parents=True)
            write_atomically(partial / PLAN, json.dumps(plan))
        for path in partial.rglob(f"{UNFINISHED}*"):  # of a process that was killed
            path.unlink()
        parts = [*_parts(plan["kind"], listing)]
        converted = _convert_parts(plan["kind"], parts, listing.root, partial, skip_damaged)
        if list_images(listing.root).digest != listing.digest:
            raise DataError(
                f"the images in {listing.root} were changed while they were converted: run the "
                f"same command again when no program changes them"
            )
        about = plan | {"classes": listing.classes, "splits": _summarize(parts, converted)}
        write_atomically(partial / INDEX, json.dumps(about, indent=1))
    shutil.rmtree(partial / DONE, ignore_errors=True)
    (partial / PLAN).unlink(missing_ok=True)


def _convert_parts(
    kind: str, parts: list[Part], root: Path, partial: Path, skip_damaged: bool
) -> list[dict[str, Any]]:
    """Convert all parts that are not complete, and return the description of each part."""

    def convert_part(part: Part) -> dict[str, Any]:
        note = partial / DONE / f"{part}.json"
        about = read_dict(note)
        if about and (skip_damaged or not about["damaged"]) and _exist(partial, about["files"]):
            return about
        about = write_part(kind, part, root, partial, skip_damaged=skip_damaged)
        write_atomically(note, json.dumps(about))
        return about

    has_affinity = hasattr(os, "sched_getaffinity")  # a job may have few of a node's cores
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
    images, converted = sum(len(part.sources) for part in parts), []
    # Threads are enough: Pillow releases the interpreter's lock while it works on pixels.
    with (
        ThreadPoolExecutor(cores) as pool,
        tqdm(total=images, desc=f"{kind} of {root.name}", unit=" images") as bar,
    ):
        try:
            for part, about in zip(parts, pool.map(convert_part, parts)):
                bar.update(len(part.sources))
                converted.append(about)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return converted


def _summarize(parts: list[Part], converted: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe each split for the index: its images, damaged files, and files by part."""
    splits = {}
    for split in SPLITS:
        abouts = [about for part, about in zip(parts, converted) if part.split == split]
        splits[split] = {
            "images": sum(about["images"] for about in abouts),
            "damaged": [name for about in abouts for name in about["damaged"]],
            "parts": [{key: about[key] for key in ("images", "files")} for about in abouts],
        }
        if not splits[split]["images"]:
            raise DataError(f"no image of {split}/ can be decoded")
    return splits


def _is_complete(target: Path, plan: dict[str, Any]) -> bool:
    """Return whether the folder is the result of this plan, and has all its files."""
    about = read_dict(target / INDEX)
    if any(about.get(key) != value for key, value in plan.items()):
        return False
    parts = [part for split in about["splits"].values() for part in split["parts"]]
    return all(_exist(target, part["files"]) for part in parts)


def _exist(folder: Path, files: FileTable) -> bool:
    """Return whether the folder has these files, each with its size."""
    sizes = {folder / name: about["bytes"] for name, about in files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def write_part(
    kind: str, part: Part, root: Path, folder: Path, *, skip_damaged: bool
) -> dict[str, Any]:
    """Convert a part of the set in `root` to files in `folder`.

    Returns:
        files: their bytes by name; images: their number; damaged: the files left out.

    Raises:
        DataError: an image is damaged, and must not be skipped; the message names it.
        OSError: a file cannot be read or written.
    """
    damaged: list[str] = []

    def encode_all() -> Iterator[tuple[Source, Any]]:
        for source in part.sources:
            try:
                content = _encode(kind, (root / source.name).read_bytes())
            except Exception as error:  # decoders raise errors of all kinds
                if not skip_damaged:
                    raise DataError(
                        f"{root / source.name} cannot be decoded "
                        f"({type(error).__name__}: {error}): copy it again, take it "
                        f"out, or leave out all such files by --skip-damaged"
                    ) from error
                damaged.append(source.name)
            else:
                yield source, content

    files, images = _WRITERS[kind](part, encode_all(), folder)
    return {"files": files, "images": images, "damaged": damaged}


def _encode(kind: str, data: bytes) -> Any:
    """Return the stored form of an image file: its bytes, a small JPEG's bytes, or pixels."""
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")  # decodes it: a damaged file must be noticed for shards, too
    if kind == "shards":
        return data
    square = (SMALL_PX, SMALL_PX)
    if kind == "raw":
        return np.asarray(ImageOps.fit(rgb, square, Image.Resampling.BICUBIC))
    if min(rgb.size) > SMALL_PX:
        rgb = ImageOps.cover(rgb, square, Image.Resampling.BICUBIC)
    small = io.BytesIO()
    rgb.save(small, "JPEG", quality=QUALITY)
    return small.getvalue()


def _write_shard(part: Part, encoded: Iterator, folder: Path) -> tuple[FileTable, int]:
    """Write a tar file of unchanged JPEG files, each followed by its class: KEY.jpg, KEY.cls."""
    path, images = folder / part.split / f"shard-{part.number:05d}.tar", 0
    with _create(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for images, (source, data) in enumerate(encoded, start=1):
            key = f"{part.number:05d}{images - 1:06d}"
            for suffix, content in (("jpg", data), ("cls", str(source.label).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")  # no owner, no time: the same bytes
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return _describe(folder, path), images


def _write_small(part: Part, encoded: Iterator, folder: Path) -> tuple[FileTable, int]:
    """Write JPEG files with their own names and a shorter side of SMALL_PX."""
    files = {}
    for source, data in encoded:
        is_jpeg = source.name.lower().endswith((".jpg", ".jpeg"))
        path = folder / (source.name if is_jpeg else f"{source.name}.jpg")
        with _create(path) as file:
            file.write(data)
        files |= _describe(folder, path)
    return files, len(files)


def _write_raw(part: Part, encoded: Iterator, folder: Path) -> tuple[FileTable, int]:
    """Write two NumPy files: bytes of shape (images, SMALL_PX, SMALL_PX, 3), and classes."""
    squares = np.empty((len(part.sources), SMALL_PX, SMALL_PX, 3), dtype=np.uint8)
    labels = []
    for index, (source, square) in enumerate(encoded):
        squares[index] = square
        labels.append(source.label)
    arrays = {"images": squares[: len(labels)], "labels": np.array(labels, dtype=np.int64)}
    files = {}
    for name, array in arrays.items():
        path = folder / part.split / f"{name}-{part.number:05d}.npy"
        with _create(path) as file:
            np.save(file, array)
        files |= _describe(folder, path)
    return files, len(labels)


_WRITERS = {"shards": _write_shard, "small": _write_small, "raw": _write_raw}
KINDS = tuple(_WRITERS)


def _create(path: Path) -> AbstractContextManager[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return complete_file(path)


def _describe(folder: Path, path: Path) -> FileTable:
    return {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size}}
