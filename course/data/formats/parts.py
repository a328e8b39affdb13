"""What becomes of some images in each format: a part is written whole, or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from course.data.default_set import DataError
from course.runs.files import whole_file

SMALL_PX = 256  # of the shorter side: a training crop of 224 pixels still moves in it
QUALITY = 90  # of small JPEG files


@dataclass(frozen=True)
class Source:
    """A file of the set: its place below the root, and its class's number."""

    name: str
    label: int


@dataclass(frozen=True)
class Part:
    """Some images of a split that are converted together."""

    split: str
    number: int
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        return f"{self.split}-{self.number:05d}"


@dataclass(frozen=True)
class Written:
    """What a part became: its files with their bytes and SHA-256, its images, what was left out."""

    files: dict[str, dict[str, Any]]
    images: int
    damaged: tuple[str, ...]


def write(kind: str, part: Part, root: Path, folder: Path, *, skip_damaged: bool) -> Written:
    """Convert a part of the set in `root` to files in `folder`.

    Raises:
        DataError: an image is damaged, and is not to be left out; the message names it.
        OSError: a file cannot be read or written.
    """
    damaged: list[str] = []

    def encoded() -> Iterator[tuple[Source, Any]]:
        for source in part.sources:
            try:
                content = _encoded(kind, (root / source.name).read_bytes())
            except Exception as error:  # each decoder has its own kinds
                if not skip_damaged:
                    raise DataError(
                        f"{root / source.name} cannot be decoded "
                        f"({type(error).__name__}: {error}): copy it again, take it "
                        f"out, or leave out all such files by --skip-damaged"
                    ) from error
                damaged.append(source.name)
            else:
                yield source, content

    files, images = _WRITERS[kind](part, encoded(), folder)
    return Written(files, images, tuple(damaged))


def _encoded(kind: str, data: bytes) -> Any:
    """What is stored of an image file: its bytes, those of a small JPEG file, or pixels."""
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")  # decodes it, so that a damaged file is noticed for shards too
    if kind == "shards":
        return data
    if kind == "raw":
        return _square(rgb)
    small = io.BytesIO()
    _shrunk(rgb).save(small, "JPEG", quality=QUALITY)
    return small.getvalue()


def _shard(part: Part, encoded: Iterator, folder: Path) -> tuple[dict, int]:
    """A tar file of the JPEG files as they are, each beside its class: KEY.jpg, KEY.cls."""
    path, images = folder / part.split / f"shard-{part.number:05d}.tar", 0
    with _opened(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for images, (source, data) in enumerate(encoded, start=1):
            key = f"{part.number:05d}{images - 1:06d}"
            for suffix, content in (("jpg", data), ("cls", str(source.label).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")  # of nobody, at no time: equal bytes
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return _described(folder, path), images


def _small(part: Part, encoded: Iterator, folder: Path) -> tuple[dict, int]:
    """JPEG files under their own names, the shorter side SMALL_PX long."""
    files = {}
    for source, data in encoded:
        is_jpeg = source.name.lower().endswith((".jpg", ".jpeg"))
        path = folder / (source.name if is_jpeg else f"{source.name}.jpg")
        with _opened(path) as file:
            file.write(data)
        files |= _described(folder, path)
    return files, len(files)


def _raw(part: Part, encoded: Iterator, folder: Path) -> tuple[dict, int]:
    """Two NumPy files: bytes of shape (images, SMALL_PX, SMALL_PX, 3), and their classes."""
    squares = np.empty((len(part.sources), SMALL_PX, SMALL_PX, 3), dtype=np.uint8)
    labels = []
    for at, (source, square) in enumerate(encoded):
        squares[at] = square
        labels.append(source.label)
    arrays = {"images": squares[: len(labels)], "labels": np.array(labels, dtype=np.int64)}
    files = {}
    for name, array in arrays.items():
        path = folder / part.split / f"{name}-{part.number:05d}.npy"
        with _opened(path) as file:
            np.save(file, array)
        files |= _described(folder, path)
    return files, len(labels)


_WRITERS = {"shards": _shard, "small": _small, "raw": _raw}
KINDS = tuple(_WRITERS)


def _shrunk(image: Image.Image) -> Image.Image:
    """With a shorter side of SMALL_PX, if it is longer."""
    scale = SMALL_PX / min(image.size)
    if scale >= 1:
        return image
    size = (round(image.width * scale), round(image.height * scale))
    return image.resize(size, Image.Resampling.BICUBIC)


def _square(image: Image.Image) -> np.ndarray:
    """The middle of the image, SMALL_PX × SMALL_PX."""
    longest = 4 * min(image.size)  # of a strip of 1 × 50,000 pixels the rest would fill the memory
    if max(image.size) > longest:
        width, height = (min(side, longest) for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    scale = SMALL_PX / min(image.size)
    size = (max(SMALL_PX, round(image.width * scale)), max(SMALL_PX, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (image.width - SMALL_PX) // 2, (image.height - SMALL_PX) // 2
    return np.asarray(image.crop((left, top, left + SMALL_PX, top + SMALL_PX)))


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return whole_file(path)


def _described(folder: Path, path: Path) -> dict[str, dict[str, Any]]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {"bytes": path.stat().st_size, "sha256": digest}
    return {path.relative_to(folder).as_posix(): about}
