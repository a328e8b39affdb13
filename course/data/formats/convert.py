"""Convert a set of images once, so that each training reads it faster.

The set is written in parts into a folder next to its final place, which is renamed when all parts
are complete. Complete parts are noted, so an interrupted conversion continues; results from images
that have changed since are deleted.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
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
from course.data.folders import INDEX, SPLITS, DataError, target_folder
from course.data.formats.sources import ImageSource, open_source, unpack
from course.data.listing import Listing, table
from course.data.pixels import decode_rgb
from course.runs.files import UNFINISHED, complete_file, read_dict, write_atomically

VERSION = 2
SEED = 0  # of the order of images in shards and raw bytes
MIN_PART, MAX_PARTS = 64, 1024  # images per part, and parts per split
SMALL_PX = 256  # the shorter side of small images: a training crop of 224 pixels can still move
QUALITY = 90  # of small JPEG files
SMALL_BYTES = 40_000  # of a small JPEG file, on average, at most
HEADERS = 2048  # bytes of a tar file for an image, besides the image, at most


# An image's number in its listing, its class, its name in a folder of classes, and its stored form.
Encoded = tuple[int, int, str, Any]


@dataclass(frozen=True)
class Part:
    """Images of a split that are converted together."""

    split: str
    number: int
    images: np.ndarray  # their numbers in the split's listing

    def __str__(self) -> str:
        return f"{self.split}-{self.number:05d}"


def convert_set(
    kind: str, root: Path | None = None, to: Path | None = None, *, skip_damaged: bool = False
) -> Path:
    """Return the folder of a set in a different format; convert it first if needed.

    Args:
        kind: "shards": tar files of the unchanged image files; "small": JPEG files of 256 pixels;
            "raw": bytes that need no decoding; "files": the unchanged files, in a folder per class.
        root: a folder that contains images in one of the forms that `sources` lists; None: the
            default set.
        to: the new folder; None: next to the default set.
        skip_damaged: leave out images that cannot be decoded; the index names them.

    Raises:
        ValueError: there is no such kind.
        DataError: the set cannot be read, or the folder cannot be written, or has no room;
            complete parts are kept.
    """
    if kind not in _WRITERS:
        raise ValueError(f"images cannot be stored as {kind!r}: choose {', '.join(_WRITERS)}")
    source = open_source(default_set.ensure() if root is None else root.expanduser().resolve())
    root = source.root
    plan = {"kind": kind, "version": VERSION, "source": str(root), "listing": source.digest}
    target = target_folder(kind, root) if to is None else to.expanduser().resolve()
    stored = read_dict(target / INDEX)
    is_other = stored and any(stored.get(name) != plan[name] for name in ("kind", "source"))
    if to is not None and (target == root or is_other):
        contents = f"{stored.get('source')}, as {stored.get('kind')}" if stored else root
        raise DataError(f"{target} contains images of {contents}: name another folder by --to")
    inside = target.relative_to(root).parts if root in target.parents else ()
    if inside and (source.is_searched or {*SPLITS} & {*inside}):
        raise DataError(
            f"{target} is inside {root}, and would be read as a part of it: name a folder outside "
            f"of it by --to"
        )
    if target.exists() and not target.is_dir():
        raise DataError(f"{target} is a file: name a new folder by --to")
    if not _is_complete(target, plan):
        _check_space(kind, source, target)
    return default_set.ensure_complete(
        target,
        is_complete=lambda folder: _is_complete(folder, plan),
        fill=lambda folder: _fill(folder, source, plan, skip_damaged),
        what=f"{kind} images",
        marker=(INDEX, "kind"),
        resumed=True,
    )


def _check_space(kind: str, source: ImageSource, target: Path) -> None:
    """Print the space that a conversion needs.

    Raises:
        DataError: the disk has less.
    """
    images = sum(map(len, source.splits.values()))
    stored = sum(int(sizes.sum()) for sizes in source.sizes.values())
    needed = {"raw": images * SMALL_PX**2 * 3, "small": min(stored, images * SMALL_BYTES)}.get(
        kind, stored + images * HEADERS
    )
    needed += stored * (source.form == "parquet")  # is unpacked before
    existing = next(path for path in (target, *target.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    partial = target.with_name(f"{target.name}.partial")
    have = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    counts = ", ".join(f"{len(part):,} {split}" for split, part in source.splits.items())
    classes = len(source.splits["train"].classes)
    print(
        f"{kind} of {source.root} ({source.form}; {counts}; {classes:,} classes) in {target}: "
        f"needs about {_size(needed)}, of {_size(free)} free",
        file=sys.stderr,
    )
    if needed - have > free:
        raise DataError(
            f"the disk of {target} has {_size(free)} free, and the {kind} images need about "
            f"{_size(needed)}: free some space, or name a folder on another disk by --to"
        )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _parts(kind: str, splits: dict[str, Listing]) -> Iterator[Part]:
    """Divide a set into parts, in random order if a part becomes one file."""
    for split, images in splits.items():
        order = np.arange(len(images))
        if kind in ("shards", "raw"):
            order = np.random.default_rng([SEED, split == "val"]).permutation(len(images))
        size = max(MIN_PART, -(-len(images) // MAX_PARTS))
        for number, begin in enumerate(range(0, len(images), size)):
            yield Part(split, number, order[begin : begin + size])


def _fill(partial: Path, source: ImageSource, plan: dict[str, Any], skip_damaged: bool) -> None:
    done = partial / f"done-{VERSION}-{source.digest[:16]}"  # the descriptions of complete parts
    if not done.exists():  # there may be parts of different images
        shutil.rmtree(partial)
        done.mkdir(parents=True)
    for path in partial.rglob(f"{UNFINISHED}*"):  # of a process that was killed
        path.unlink()
    splits = unpack(source, done) if source.form == "parquet" else source.splits
    parts = [*_parts(plan["kind"], splits)]
    converted = _convert_parts(plan["kind"], parts, splits, done, skip_damaged)
    about = plan | {
        "classes": splits["train"].classes,
        "splits": _summarize(parts, converted),
    }
    if plan["kind"] == "shards":
        for split, listing in splits.items():
            _list_shards(partial, split, listing, parts, converted)
    write_atomically(partial / INDEX, json.dumps(about, indent=1))
    shutil.rmtree(done)


def _list_shards(
    folder: Path,
    split: str,
    source: Listing,
    parts: list[Part],
    converted: list[dict[str, Any]],
) -> None:
    """Write where each image is in the shards, in the order of the source."""
    abouts = [about for part, about in zip(parts, converted) if part.split == split]
    places = np.concatenate([about["places"] for about in abouts])
    shards = np.repeat(range(len(abouts)), [about["images"] for about in abouts])
    order = np.argsort(places[:, 0])
    images, offsets, lengths = places[order].T
    names = source.rows["name"][images]
    rows = table(shards[order], source.labels[images], names, offsets, lengths)
    files = [name for about in abouts for name in about["files"]]
    Listing(folder, source.classes, files, rows).save(folder / f"{split}.npy")


def _convert_parts(
    kind: str, parts: list[Part], splits: dict[str, Listing], done: Path, skip_damaged: bool
) -> list[dict[str, Any]]:
    """Convert all parts that are not complete, and return the description of each part."""

    def convert_part(part: Part) -> dict[str, Any]:
        note = done / f"{part}.json"
        about = read_dict(note)
        if about and (skip_damaged or not about["damaged"]) and _exist(done.parent, about["files"]):
            return about
        source = splits[part.split]
        about = write_part(kind, part, source, done.parent, skip_damaged=skip_damaged)
        write_atomically(note, json.dumps(about))
        return about

    images, converted = sum(len(part.images) for part in parts), []
    # Threads are enough: Pillow releases the interpreter's lock while it works on pixels.
    with (
        ThreadPoolExecutor() as pool,
        tqdm(total=images, desc=kind, unit=" images") as bar,
    ):
        try:
            for part, about in zip(parts, pool.map(convert_part, parts)):
                bar.update(len(part.images))
                places = np.array(about.get("places", []), np.int64).reshape(-1, 3)
                converted.append(about | {"places": places})  # as lists, they would take 300 MB
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
    lists = [f"{split}.npy" for split in SPLITS] if plan["kind"] == "shards" else []
    return all(_exist(target, files) for files in (lists, *(part["files"] for part in parts)))


def _exist(folder: Path, files: Iterable[str]) -> bool:
    return all((folder / name).is_file() for name in files)


def write_part(
    kind: str, part: Part, source: Listing, folder: Path, *, skip_damaged: bool
) -> dict[str, Any]:
    """Convert a part of a set to files in `folder`.

    Returns:
        files: their names; images: their number; damaged: the images left out; for shards, places:
        the number in the source, the offset and the length of each image.

    Raises:
        DataError: an image is damaged, and must not be skipped; the message names it.
        OSError: a file cannot be written.
    """
    damaged: list[str] = []

    def encode_all() -> Iterator[Encoded]:
        for number in part.images.tolist():
            place, label = source[number]
            try:
                content = _encode(kind, source.read(number))
            except Exception as error:  # decoders raise errors of all kinds
                if not skip_damaged:
                    raise DataError(
                        f"{place} cannot be decoded "
                        f"({type(error).__name__}: {error}): copy it again, take it "
                        f"out, or leave out all such files by --skip-damaged"
                    ) from error
                damaged.append(source.name_in(part.split, number))
            else:
                yield number, label, source.name_in(part.split, number), content

    about = _WRITERS[kind](part, encode_all(), folder)
    return about | {"damaged": damaged}


def _encode(kind: str, data: bytes) -> Any:
    """Return the stored form of an image file: its bytes, a small JPEG's bytes, or pixels."""
    rgb = decode_rgb(data)  # a damaged file must be noticed for shards, too
    if kind in ("shards", "files"):
        return data
    square = (SMALL_PX, SMALL_PX)
    if kind == "raw":
        return np.asarray(ImageOps.fit(rgb, square, Image.Resampling.BICUBIC))
    if min(rgb.size) > SMALL_PX:
        rgb = ImageOps.cover(rgb, square, Image.Resampling.BICUBIC)
    small = io.BytesIO()
    rgb.save(small, "JPEG", quality=QUALITY)
    return small.getvalue()


def _write_shard(part: Part, images: Iterable[Encoded], folder: Path) -> dict[str, Any]:
    """Write a tar file of unchanged image files, each followed by its class: KEY.jpg, KEY.cls."""
    name, places = f"{part.split}/shard-{part.number:05d}.tar", []
    with _create(folder / name) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for number, label, _, data in images:
            key = f"{part.number:05d}{len(places):06d}"
            for suffix, content in (("jpg", data), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")  # no owner, no time: the same bytes
                member.size = len(content)
                if suffix == "jpg":
                    places.append((number, file.tell() + tarfile.BLOCKSIZE, len(data)))
                tar.addfile(member, io.BytesIO(content))
    return {"files": [name], "images": len(places), "places": places}


def _write_files(part: Part, images: Iterable[Encoded], folder: Path) -> dict[str, Any]:
    """Write files with their own names, in a folder per class."""
    names = []
    for _, _, name, data in images:
        names.append(name)
        with _create(folder / name) as file:
            file.write(data)
    return {"files": names, "images": len(names)}


def _write_small(part: Part, images: Iterable[Encoded], folder: Path) -> dict[str, Any]:
    """Write JPEG files with a shorter side of SMALL_PX."""

    def named(name: str) -> str:
        return name if name.lower().endswith((".jpg", ".jpeg")) else f"{name}.jpg"

    renamed = ((number, label, named(name), data) for number, label, name, data in images)
    return _write_files(part, renamed, folder)


def _write_raw(part: Part, images: Iterable[Encoded], folder: Path) -> dict[str, Any]:
    """Write two NumPy files: bytes of shape (images, SMALL_PX, SMALL_PX, 3), and classes."""
    squares = np.empty((len(part.images), SMALL_PX, SMALL_PX, 3), dtype=np.uint8)
    labels = []
    for index, (_, label, _, square) in enumerate(images):
        squares[index] = square
        labels.append(label)
    arrays = {"images": squares[: len(labels)], "labels": np.array(labels, dtype=np.int64)}
    names = []
    for kind, array in arrays.items():
        names.append(f"{part.split}/{kind}-{part.number:05d}.npy")
        with _create(folder / names[-1]) as file:
            np.save(file, array)
    return {"files": names, "images": len(labels)}


_WRITERS = {
    "shards": _write_shard, "small": _write_small, "raw": _write_raw, "files": _write_files,
}  # fmt: skip


def _create(path: Path) -> AbstractContextManager[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return complete_file(path)
