"""Convert a set of images once, so that each training reads it faster.

It is made part by part in a folder beside its place, which is renamed when all parts are there. A
part that is done is noted, so whoever is interrupted goes on where they were; what was made of
images that have changed since is thrown away.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from course.data import default_set, folders
from course.data.default_set import DataError
from course.data.formats.parts import KINDS, Part, Source, write
from course.runs.files import UNFINISHED, read_dict, write_atomically

INDEX = "index.json"
PLAN, DONE = "plan.json", "done"  # of a conversion under way
SPLITS = ("train", "val")
VERSION = 1
SEED = 0  # of the order in which images lie in shards and in raw bytes
LEAST, MOST_PARTS = 64, 1024  # images of a part at least, parts of a split at most


@dataclass(frozen=True)
class Listing:
    """The images of a set as they lie in its folder, split by split, and their digest."""

    root: Path
    classes: list[str]
    images: dict[str, list[Source]]
    digest: str  # of every file's name, size and time of change
    hidden: tuple[str, ...]  # files and folders that are skipped


def convert(kind: str, root: Path | None = None, *, skip_damaged: bool = False) -> Path:
    """The folder of a set in another format, made now if it is not there whole.

    Args:
        kind: "shards": tar files of the JPEG files as they are; "small": JPEG files of 256 pixels;
            "raw": bytes that need no decoding.
        root: the set, with train/ and val/, each with a folder for each class; None: the default
            set.
        skip_damaged: leave out images that cannot be decoded; the index names them.

    Raises:
        ValueError: no such kind.
        DataError: the set cannot be used, or the folder not be written; what is done is kept.
    """
    if kind not in KINDS:
        raise ValueError(f"images cannot be stored as {kind!r}: choose {', '.join(KINDS)}")
    found = listed(default_set.ensure() if root is None else root.expanduser().resolve())
    folders.report_hidden(found.root, found.hidden)
    target = place(kind, found.root)
    wanted = {"kind": kind, "version": VERSION, "source": str(found.root), "listing": found.digest}
    if _is_whole(target, wanted):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):  # of two at once, one waits and finds it made
            if not _is_whole(target, wanted):
                _refuse_foreign(target)
                _make(target, found, wanted, skip_damaged)
    except OSError as error:
        raise DataError(_refused(target, error)) from error
    return target


def place(kind: str, root: Path) -> Path:
    """Where a set in another format lies: beside the default set, which COURSE_DATA can move."""
    name = root.name
    if root != default_set.default_root().resolve():  # two sets may have one name
        name += "-" + hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return default_set.default_root().resolve().parent / f"{name}-{kind}"


def index(folder: Path, kind: str = "") -> dict[str, Any]:
    """What a conversion has written: kind, classes, and of each split images, parts and files.

    Raises:
        DataError: the folder holds none, or not this kind.
    """
    about = read_dict(folder / INDEX)
    if not about or kind not in ("", about["kind"]):
        raise DataError(
            f"{folder} holds {about.get('kind', 'no converted images')}: make "
            f"{kind or ' or '.join(KINDS)} by course data --as {kind or 'KIND'} --data-root FOLDER"
        )
    return about


def listed(root: Path) -> Listing:
    """Look through a set's folder; no image is opened.

    Raises:
        DataError: a split or a class is missing or has no image; the message names it.
    """
    classes: dict[str, list[str]] = {}
    images: dict[str, list[Source]] = {}
    digest, hidden = hashlib.sha256(), []
    for split in SPLITS:
        folder = root / split
        if not folder.is_dir():
            raise DataError(f"no folder {folder}: a set of images has train/ and val/")
        classes[split] = folders.class_names(folder, hidden)
        images[split] = []
        for label, name in enumerate(classes[split]):
            files = sorted(folders.images_below(folder / name, hidden))
            if not files:
                raise DataError(f"{folder / name} holds no image")
            for path in files:
                about = path.stat()
                source = Source(path.relative_to(root).as_posix(), label)
                images[split].append(source)
                digest.update(f"{source.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    if classes["train"] != classes["val"] or not classes["train"]:
        odd = sorted(set(classes["train"]) ^ set(classes["val"]))
        raise DataError(f"train/ and val/ in {root} differ in their class folders: {odd[:5]}")
    return Listing(root, classes["train"], images, digest.hexdigest(), tuple(hidden))


def parts_of(kind: str, found: Listing) -> Iterator[Part]:
    """A set in parts: as it lies for files of their own, mixed where a part becomes one file."""
    for split, sources in found.images.items():
        order = range(len(sources))
        if kind != "small":
            order = np.random.default_rng([SEED, split == "val"]).permutation(len(sources))
        size = max(LEAST, -(-len(sources) // MOST_PARTS))
        for number, at in enumerate(range(0, len(sources), size)):
            yield Part(split, number, tuple(sources[i] for i in order[at : at + size]))


def _make(target: Path, found: Listing, wanted: dict[str, Any], skip_damaged: bool) -> None:
    partial = target.with_name(f"{target.name}.partial")
    if read_dict(partial / PLAN) != wanted:  # made of other images, or otherwise
        shutil.rmtree(partial, ignore_errors=True)
        (partial / DONE).mkdir(parents=True)
        write_atomically(partial / PLAN, json.dumps(wanted))
    for path in partial.rglob(f"{UNFINISHED}*"):  # of one that was killed
        path.unlink()
    if not _is_whole(partial, wanted):
        parts = [*parts_of(wanted["kind"], found)]
        done = list(_all_written(parts, found, partial, skip_damaged))
        if listed(found.root).digest != found.digest:
            raise DataError(
                f"the images in {found.root} were changed while they were converted: run the "
                f"same command again when nobody changes them"
            )
        about = wanted | {"classes": found.classes, "splits": _summed(parts, done)}
        write_atomically(partial / INDEX, json.dumps(about, indent=1))
    _put(partial, target)


def _put(partial: Path, target: Path) -> None:
    """Let what is complete take its place, at once: what lay there is moved away before."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():  # of other images, or damaged
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(target / DONE)
    (target / PLAN).unlink()


def _all_written(
    parts: list[Part], found: Listing, partial: Path, skip_damaged: bool
) -> Iterator[dict[str, Any]]:
    """What each part became, in order; those that are done already are not made again."""
    kind, images = read_dict(partial / PLAN)["kind"], sum(len(part.sources) for part in parts)
    one = functools.partial(_one, kind, found.root, partial, skip_damaged=skip_damaged)
    # Threads suffice: Pillow lets go of the interpreter while it works on pixels.
    with (
        ThreadPoolExecutor(_cores()) as pool,
        tqdm(total=images, desc=f"{kind} of {found.root.name}", unit=" images") as bar,
    ):
        try:
            for part, written in zip(parts, pool.map(one, parts)):
                bar.update(len(part.sources))
                yield written
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _cores() -> int:
    """Those that this process may use: a job may have few of a node's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _one(kind: str, root: Path, partial: Path, part: Part, *, skip_damaged: bool) -> dict[str, Any]:
    note = partial / DONE / f"{part}.json"
    known = read_dict(note)
    if known and (skip_damaged or not known["damaged"]) and _are_there(partial, known["files"]):
        return known
    written = asdict(write(kind, part, root, partial, skip_damaged=skip_damaged))
    write_atomically(note, json.dumps(written))
    return written


def _summed(parts: list[Part], done: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each split: how many images, which files hold how many of them, what was left out."""
    splits = {}
    for split in SPLITS:
        own = [written for part, written in zip(parts, done) if part.split == split]
        splits[split] = {
            "images": sum(each["images"] for each in own),
            "damaged": [name for each in own for name in each["damaged"]],
            "parts": [{key: each[key] for key in ("images", "files")} for each in own],
        }
        if not splits[split]["images"]:
            raise DataError(f"no image of {split}/ can be decoded")
    return splits


def _is_whole(target: Path, wanted: dict[str, Any]) -> bool:
    """Is what was wanted there, with each of its files in its size?"""
    there = read_dict(target / INDEX)
    if any(there.get(key) != value for key, value in wanted.items()):
        return False
    parts = [part for split in there["splits"].values() for part in split["parts"]]
    return all(_are_there(target, part["files"]) for part in parts)


def _are_there(folder: Path, files: dict[str, dict[str, Any]]) -> bool:
    """Does each file lie there in its size?"""
    paths = {folder / name: about["bytes"] for name, about in files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def _refuse_foreign(target: Path) -> None:
    if target.exists() and any(target.iterdir()) and "kind" not in read_dict(target / INDEX):
        raise DataError(
            f"{target} holds files that are no converted images, so it is left alone: move it, or "
            f"set COURSE_DATA to a folder in another place"
        )


def _refused(target: Path, error: OSError) -> str:
    free = shutil.disk_usage(_there(target)).free / 1e9
    return (
        f"cannot write to {target}: {error.strerror or error} ({free:.1f} GB free). What is done "
        f"is kept in {target.name}.partial, and the same command goes on with it; or set "
        f"COURSE_DATA to a folder in a place with room that you may write"
    )


def _there(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next(each for each in (path, *path.parents) if each.exists())
