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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from course.data import default_set
from course.data.folders import INDEX, KINDS, SPLITS, DataError, target_folder
from course.data.pixels import decode_rgb
from course.runs.files import UNFINISHED, complete_file, read_dict, write_atomically

VERSION = 1
SEED = 0  # of the order of images in shards and raw bytes
MIN_PART, MAX_PARTS = 64, 1024  # images per part, and parts per split
SMALL_PX = 256  # the shorter side of small images: a training crop of 224 pixels can still move
QUALITY = 90  # of small JPEG files
Source = tuple[str, int]  # a file of the set: its path below the root, and its class


@dataclass(frozen=True)
class Listing:
    """The images of a set's folder by split, and their digest."""

    root: Path
    classes: list[str]
    images: dict[str, list[Source]]
    digest: str  # of each file's name, size and modification time


@dataclass(frozen=True)
class Part:
    """Images of a split that are converted together."""

    split: str
    number: int
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        return f"{self.split}-{self.number:05d}"


def convert_set(kind: str, root: Path | None = None, *, skip_damaged: bool = False) -> Path:
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
    listing = list_images(default_set.ensure() if root is None else root.expanduser().resolve())
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


def list_images(root: Path) -> Listing:
    """List the images of a set's folder, without opening any.

    Raises:
        DataError: a split or a class is missing or has no image; the message names it.
    """
    from course.data.images import check_classes, open_folder  # here: torchvision takes 2 s

    splits = {split: open_folder(root, split) for split in SPLITS}
    classes = splits["train"].classes
    check_classes(root, classes, splits["val"].classes)
    images: dict[str, list[Source]] = {}
    digest = hashlib.sha256()
    for split, files in splits.items():
        images[split] = []
        for path, label in files.samples:
            if not os.path.isfile(path):  # a link without a target
                continue
            status, name = os.stat(path), Path(path).relative_to(root).as_posix()
            images[split].append((name, label))
            digest.update(os.fsencode(f"{name} {status.st_size} {status.st_mtime_ns}\n"))
    return Listing(root, classes, images, digest.hexdigest())


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
    done = partial / f"done-{VERSION}-{listing.digest[:16]}"  # the descriptions of complete parts
    if not done.exists():  # there may be parts of different images
        shutil.rmtree(partial)
        done.mkdir(parents=True)
    for path in partial.rglob(f"{UNFINISHED}*"):  # of a process that was killed
        path.unlink()
    parts = [*_parts(plan["kind"], listing)]
    converted = _convert_parts(plan["kind"], parts, listing.root, done, skip_damaged)
    about = plan | {"classes": listing.classes, "splits": _summarize(parts, converted)}
    write_atomically(partial / INDEX, json.dumps(about, indent=1))
    shutil.rmtree(done)


def _convert_parts(
    kind: str, parts: list[Part], root: Path, done: Path, skip_damaged: bool
) -> list[dict[str, Any]]:
    """Convert all parts that are not complete, and return the description of each part."""

    def convert_part(part: Part) -> dict[str, Any]:
        note = done / f"{part}.json"
        about = read_dict(note)
        if about and (skip_damaged or not about["damaged"]) and _exist(done.parent, about["files"]):
            return about
        about = write_part(kind, part, root, done.parent, skip_damaged=skip_damaged)
        write_atomically(note, json.dumps(about))
        return about

    images, converted = sum(len(part.sources) for part in parts), []
    # Threads are enough: Pillow releases the interpreter's lock while it works on pixels.
    with (
        ThreadPoolExecutor() as pool,
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


def _exist(folder: Path, files: Iterable[str]) -> bool:
    return all((folder / name).is_file() for name in files)


def write_part(
    kind: str, part: Part, root: Path, folder: Path, *, skip_damaged: bool
) -> dict[str, Any]:
    """Convert a part of the set in `root` to files in `folder`.

    Returns:
        files: their names; images: their number; damaged: the files left out.

    Raises:
        DataError: an image is damaged, and must not be skipped; the message names it.
        OSError: a file cannot be read or written.
    """
    damaged: list[str] = []

    def encode_all() -> Iterator[tuple[Source, Any]]:
        for name, label in part.sources:
            try:
                content = _encode(kind, (root / name).read_bytes())
            except Exception as error:  # decoders raise errors of all kinds
                if not skip_damaged:
                    raise DataError(
                        f"{root / name} cannot be decoded "
                        f"({type(error).__name__}: {error}): copy it again, take it "
                        f"out, or leave out all such files by --skip-damaged"
                    ) from error
                damaged.append(name)
            else:
                yield (name, label), content

    files, images = _WRITERS[kind](part, encode_all(), folder)
    return {"files": files, "images": images, "damaged": damaged}


def _encode(kind: str, data: bytes) -> Any:
    """Return the stored form of an image file: its bytes, a small JPEG's bytes, or pixels."""
    rgb = decode_rgb(data)  # a damaged file must be noticed for shards, too
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


def _write_shard(part: Part, encoded: Iterator, folder: Path) -> tuple[list[str], int]:
    """Write a tar file of unchanged JPEG files, each followed by its class: KEY.jpg, KEY.cls."""
    name, images = f"{part.split}/shard-{part.number:05d}.tar", 0
    with _create(folder / name) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for images, ((_, label), data) in enumerate(encoded, start=1):
            key = f"{part.number:05d}{images - 1:06d}"
            for suffix, content in (("jpg", data), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")  # no owner, no time: the same bytes
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return [name], images


def _write_small(part: Part, encoded: Iterator, folder: Path) -> tuple[list[str], int]:
    """Write JPEG files with their own names and a shorter side of SMALL_PX."""
    names = []
    for (name, _), data in encoded:
        is_jpeg = name.lower().endswith((".jpg", ".jpeg"))
        names.append(name if is_jpeg else f"{name}.jpg")
        with _create(folder / names[-1]) as file:
            file.write(data)
    return names, len(names)


def _write_raw(part: Part, encoded: Iterator, folder: Path) -> tuple[list[str], int]:
    """Write two NumPy files: bytes of shape (images, SMALL_PX, SMALL_PX, 3), and classes."""
    squares = np.empty((len(part.sources), SMALL_PX, SMALL_PX, 3), dtype=np.uint8)
    labels = []
    for index, ((_, label), square) in enumerate(encoded):
        squares[index] = square
        labels.append(label)
    arrays = {"images": squares[: len(labels)], "labels": np.array(labels, dtype=np.int64)}
    names = []
    for kind, array in arrays.items():
        names.append(f"{part.split}/{kind}-{part.number:05d}.npy")
        with _create(folder / names[-1]) as file:
            np.save(file, array)
    return names, len(labels)


_WRITERS = {"shards": _write_shard, "small": _write_small, "raw": _write_raw}


def _create(path: Path) -> AbstractContextManager[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return complete_file(path)
