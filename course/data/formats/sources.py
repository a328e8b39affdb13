"""Sets of images as people have them: the official tar files, folders, parquet, WebDataset.

`open_source` recognises what a folder contains, and returns where the bytes of each image are. So
a conversion reads them in any order, without unpacking anything.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from tarfile import BLOCKSIZE
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from course.data import folders
from course.data.folders import SPLITS, DataError, subfolders
from course.data.listing import (
    THREADS,
    Listing,
    check_classes,
    concatenate,
    is_hidden,
    is_image,
    list_folder,
    list_shards,
    table,
)
from course.runs.files import complete_file

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
KIT = "ILSVRC2012_devkit_t12"  # as a folder or .tar.gz
CSV = "LOC_val_solution.csv"  # Kaggle's
SPLIT_NAMES = {  # of files that contain a part of a split
    "train": re.compile(r"(^|[^a-z])train"),
    "val": re.compile(r"(^|[^a-z])val(id(ation)?)?([^a-z]|$)"),
}
EXPECTED = f"""expected one of
- {TRAIN_TAR} and {VAL_TAR}, with {KIT}.tar.gz or {CSV};
- train/ and val/ with a folder per class (as in Kaggle's ILSVRC/Data/CLS-LOC, val/ may have none,
  with {KIT}.tar.gz or {CSV} next to it);
- Hugging Face's train-….parquet and validation-….parquet;
- WebDataset's …train….tar and …val….tar, with KEY.jpg and KEY.cls or KEY.json;
- shards that course data has made"""


@dataclass(frozen=True)
class ImageSource:
    """A set of images in one of these forms.

    Attributes:
        form: in words.
        splits: of parquet files, the offsets are the numbers of rows until `unpack` has read them.
        sizes: bytes of each image's file, by split; of parquet files, estimates.
        digest: of the names, sizes and times of all files.
    """

    root: Path
    form: str
    splits: dict[str, Listing]
    sizes: dict[str, np.ndarray]
    digest: str

    @property
    def is_searched(self) -> bool:
        """Whether files in any of its folders are a part of it."""
        return self.form in ("parquet", "WebDataset shards")


def open_source(root: Path) -> ImageSource:
    """Recognise the form of a set, and list its images.

    Raises:
        DataError: it has no known form, or is incomplete; the message names what was expected.
    """
    if not root.is_dir():
        raise DataError(f"no folder {root}: {EXPECTED}")
    bases = (root, root / "Data/CLS-LOC", root / "ILSVRC/Data/CLS-LOC")
    trains = (base for base in bases if subfolders(base / "train"))
    if (root / TRAIN_TAR).is_file() or (root / VAL_TAR).is_file():
        form, splits = "official tar files", _official(root)
    elif folders.read_index(root).get("kind") == "shards":
        form, splits = "shards", {split: list_shards(root, split) for split in SPLITS}
    elif base := next(trains, None):
        form, splits = "folder of classes", _of_folders(base)
    elif parquets := _by_split(root, ".parquet"):
        form, splits = "parquet", _of_parquet(root, parquets)
    elif tars := _by_split(root, ".tar"):
        form, splits = "WebDataset shards", _of_shards(root, tars)
    else:
        raise DataError(f"{root} contains no set that can be read: {EXPECTED}")
    sizes, digest = {}, hashlib.sha256()
    for split, listing in splits.items():
        splits[split], sizes[split] = _measure(listing, digest)
    return ImageSource(root, form, splits, sizes, digest.hexdigest())


def _measure(listing: Listing, digest: Any) -> tuple[Listing, np.ndarray]:
    """Return the size of each image's file, and update the digest; drop links without a target."""
    if listing.in_files:
        times = [os.stat(listing.root / name).st_mtime_ns for name in listing.containers]
        about = [listing.containers, listing.stamps, times]
        digest.update(json.dumps(about).encode() + listing.rows.tobytes())
        return listing, listing.rows["length"]

    def sizes_and_times(begin: int) -> np.ndarray:
        numbers = range(begin, min(begin + 1024, len(listing)))
        return np.array([_size_and_time(listing[number][0]) for number in numbers], np.int64)

    with ThreadPoolExecutor(THREADS) as pool:
        status = np.concatenate([*pool.map(sizes_and_times, range(0, len(listing), 1024))])
    exists = status[:, 0] >= 0
    digest.update(json.dumps(listing.containers).encode() + listing.rows.tobytes())
    digest.update(status.tobytes())
    if not exists.all():
        rows, stamps = listing.rows[exists], listing.stamps
        listing = Listing(listing.root, listing.classes, listing.containers, rows, stamps)
    return listing, status[exists, 0]


def _size_and_time(path: str | Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return -1, 0
    return (status.st_size, status.st_mtime_ns) if S_ISREG(status.st_mode) else (-1, 0)


# --- The official files, and folders.


def _official(root: Path) -> dict[str, Listing]:
    for name in (TRAIN_TAR, VAL_TAR):
        if not (root / name).is_file():
            raise DataError(f"{root} has no {name}: {EXPECTED}")
    wnids = _val_classes(root, root / VAL_TAR)
    tables: dict[str, np.ndarray] = {}
    with (root / TRAIN_TAR).open("rb") as file:
        inside = tqdm(_members(file, root / TRAIN_TAR), f"listing {TRAIN_TAR}", unit=" classes")
        for name, begin, length in inside:
            if name.endswith(".tar") and not is_hidden(name):
                where, wnid = f"{root / TRAIN_TAR} ({name})", PurePosixPath(name).stem
                if wnid in tables:
                    raise DataError(f"{where}: class {wnid} is in it twice. Copy it again")
                tables[wnid] = _images_in(file, where, begin, length)
    if not tables:
        raise DataError(f"{root / TRAIN_TAR} has no tar files of classes inside")
    classes = sorted(tables)  # as a folder of them would be
    for label, name in enumerate(classes):
        tables[name]["label"] = label
    with (root / VAL_TAR).open("rb") as file:
        val = np.sort(_images_in(file, root / VAL_TAR), order="name")
    names = [os.fsdecode(name) for name in val["name"]]
    val["label"] = _labels(names, wnids, classes, root / VAL_TAR)
    train = concatenate([tables[name] for name in classes])
    return {
        "train": Listing(root, classes, [TRAIN_TAR], train),
        "val": Listing(root, classes, [VAL_TAR], val),
    }


def _images_in(file: IO[bytes], where: object, *part: int) -> np.ndarray:
    """Return the rows of a listing for the images in a tar file."""
    images = [member for member in _members(file, where, *part) if is_image(member[0])]
    if not images:
        raise DataError(f"{where} has no images")
    names, offsets, lengths = zip(*images)
    names = [PurePosixPath(name).name for name in names]
    _check_unique(names, where)
    return table(0, 0, [os.fsencode(name) for name in names], offsets, lengths)


def _check_unique(names: Iterable[str], where: object) -> None:
    """Raise DataError for a name that is used twice: as files, one would replace the other."""
    known: set[str] = set()
    for name in names:
        if name in known:
            raise DataError(f"{where} has {name} twice: rename one of the images")
        known.add(name)


def _of_folders(base: Path) -> dict[str, Listing]:
    train, is_dir = list_folder(base, "train"), (base / "val").is_dir()
    names = sorted(filter(is_image, os.listdir(base / "val"))) if is_dir else []
    if subfolders(base / "val") or not names:
        val = list_folder(base, "val")
        check_classes(base, train.classes, val.classes)
    else:
        labels = _labels(names, _val_classes(base, base / "val"), train.classes, base / "val")
        rows = table(0, labels, [os.fsencode(name) for name in names])
        val = Listing(base, train.classes, ["val"], rows)
    return {"train": train, "val": val}


def _labels(
    names: Sequence[str], wnids: dict[str, str], classes: list[str], place: Path
) -> list[int]:
    """Return the class of each validation image.

    Raises:
        DataError: an image has no class, or one that the training images do not have.
    """
    numbers = {wnid: number for number, wnid in enumerate(classes)}
    labels = []
    for name in names:
        wnid = wnids.get(PurePosixPath(name).stem)
        if wnid not in numbers:
            problem = f"is of class {wnid}, which no training image has" if wnid else "has no class"
            raise DataError(
                f"{place}: {name} {problem}. The training images have {len(classes)} classes, "
                f"{classes[0]} to {classes[-1]}"
            )
        labels.append(numbers[wnid])
    return labels


def _val_classes(base: Path, place: Path) -> dict[str, str]:
    """Return the class of each validation image by its name, from Kaggle's file or the kit."""
    for folder in (base, *base.parents[:3]):
        if (folder / CSV).is_file():
            try:
                with (folder / CSV).open(newline="", encoding="utf-8") as file:
                    rows = [*csv.DictReader(file)]
                return {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}
            except (ValueError, KeyError, AttributeError, IndexError, csv.Error) as error:
                raise DataError(
                    f"{folder / CSV} cannot be read ({type(error).__name__}: {error}): expected "
                    f"columns ImageId and PredictionString, with a class in each row. Copy it again"
                ) from error
        if (folder / f"{KIT}.tar.gz").is_file() or (folder / KIT).is_dir():
            return _read_kit(folder)
    raise DataError(
        f"{place} does not say which class an image has: put {KIT}.tar.gz (of "
        f"image-net.org) or Kaggle's {CSV} into {base}"
    )


def _read_kit(folder: Path) -> dict[str, str]:
    """Return the class of each validation image from the official development kit.

    Its numbers of classes are not those of the sorted names: 1 is the kit fox, n02119789.
    """
    from scipy.io import loadmat

    wanted = {"meta.mat": b"", "ILSVRC2012_validation_ground_truth.txt": b""}
    kit = folder / f"{KIT}.tar.gz" if (folder / f"{KIT}.tar.gz").is_file() else folder / KIT
    try:
        if kit.is_dir():
            files = [path for name in wanted if (path := kit / "data" / name).is_file()]
            wanted = {path.name: path.read_bytes() for path in files}
        else:
            with tarfile.open(kit) as tar:
                for member in tar:
                    if (name := PurePosixPath(member.name).name) in wanted and member.isfile():
                        wanted[name] = tar.extractfile(member).read()
        synsets = loadmat(io.BytesIO(wanted["meta.mat"]), squeeze_me=True)["synsets"]
        wnids = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
        numbers = [int(x) for x in wanted["ILSVRC2012_validation_ground_truth.txt"].split()]
        return {
            f"ILSVRC2012_val_{image:08d}": wnids[number]
            for image, number in enumerate(numbers, start=1)
        }
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{kit} cannot be read ({type(error).__name__}: {error}): expected data/meta.mat and "
            f"data/ILSVRC2012_validation_ground_truth.txt inside; copy it again"
        ) from error


# --- Tar files.


def _members(
    file: IO[bytes], where: object, begin: int = 0, length: float = math.inf
) -> Iterator[tuple[str, int, int]]:
    """Yield the name, offset and length of each file in a tar file; read only their headers.

    Args:
        begin, length: of the tar file in `file`, in bytes.

    Raises:
        DataError: it is compressed, damaged or truncated. `tarfile` reports only some of that.
    """
    end = begin
    try:
        file.seek(begin)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while member := tar.next():
                tar.members.clear()  # or it keeps all
                end = member.offset_data + -(-member.size // BLOCKSIZE) * BLOCKSIZE
                if end > begin + length:
                    break
                if member.isreg():
                    yield member.name, member.offset_data, member.size
            file.seek(end)
            if end > begin + length or file.read(BLOCKSIZE) != bytes(BLOCKSIZE):
                raise tarfile.ReadError(f"it is damaged or truncated after byte {end:,}")
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"{where} cannot be read as a tar file without compression: {error}. Copy it again"
        ) from error


def _by_split(root: Path, suffix: str) -> dict[str, list[Path]]:
    """Return the files in a folder and its folders with this suffix, by split; {} if none."""
    matches = sorted(root.rglob(f"*{suffix}"))
    paths = [path for path in matches if path.is_file() and not is_hidden(path.name)]
    splits = {
        split: [path for path in paths if name.search(path.relative_to(root).as_posix().lower())]
        for split, name in SPLIT_NAMES.items()
    }
    if not any(splits.values()):
        return {}
    for split, files in splits.items():
        if not files:
            raise DataError(f"{root} has {suffix} files, but none with {split} in its name")
    return splits


def _of_shards(root: Path, tars: dict[str, list[Path]]) -> dict[str, Listing]:
    """List other people's WebDataset shards: KEY.jpg, .jpeg or .png, and KEY.cls or KEY.json."""
    columns = {}
    for split, paths in tars.items():
        container, labels, names, offsets, lengths = columns[split] = ([], [], [], [], [])
        for number, path in enumerate(tqdm(paths, f"listing {split}", unit=" shards")):
            for key, suffix, label, offset, length in _samples(path):
                container.append(number)
                labels.append(label)
                name = f"{path.stem}_{key.replace('/', '_')}.{suffix}"  # keys repeat among shards
                names.append(os.fsencode(name))
                offsets.append(offset)
                lengths.append(length)
    classes = _number_classes(root, {split: labels for split, (_, labels, *_) in columns.items()})
    return {
        split: Listing(
            root,
            classes,
            [path.relative_to(root).as_posix() for path in tars[split]],
            table(*rows),
        )
        for split, rows in columns.items()
    }


def _samples(path: Path) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield key, suffix, class, offset and length of each image in a shard."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    with path.open("rb") as file:
        for name, offset, length in _members(file, path):
            folder, _, base = name.rpartition("/")
            if is_hidden(name):
                continue
            key, _, suffix = base.partition(".")  # as WebDataset defines it
            key = f"{folder}/{key}" if folder else key
            parts, suffix = samples.setdefault(key, {}), suffix.lower()
            if suffix in parts:
                raise DataError(f"{path} has {key}.{suffix} twice: give each image its own key")
            parts[suffix] = (offset, length)

        def read(place: tuple[int, int]) -> bytes:
            return os.pread(file.fileno(), place[1], place[0])

        for key, parts in samples.items():
            suffix = next((x for x in ("jpg", "jpeg", "png") if x in parts), None)
            try:
                if "cls" in parts:
                    label = int(read(parts["cls"]))
                else:
                    about = json.loads(read(parts["json"]))
                    label = int(about["label"] if "label" in about else about["cls"])
            except (KeyError, ValueError, TypeError) as error:
                raise DataError(
                    f"{path}: {key} has {', '.join(parts)}; expected its class as a number in "
                    f"{key}.cls, or as label in {key}.json ({type(error).__name__}: {error})"
                ) from error
            if suffix is None:
                raise DataError(f"{path}: {key} has no .jpg, .jpeg or .png")
            yield key, suffix, label, *parts[suffix]


def _number_classes(root: Path, labels: dict[str, list[int]], count: int = 0) -> list[str]:
    """Return names of numbered classes that sort as their numbers.

    Raises:
        DataError: the numbers do not start at 0, or the splits differ, or there are more classes
            than images.
    """
    train, val = (sorted(set(labels[split])) for split in SPLITS)
    if not len(train) or not len(val):
        raise DataError(f"{root} has no images in {'val' if len(train) else 'train'}")
    if train[0] != 0:
        raise DataError(
            f"{root}: labels of training images are from {train[0]} to {train[-1]}; expected 0 to "
            f"the number of classes - 1. Subtract {train[0]} from all labels"
        )
    if not count and train[-1] >= len(labels["train"]):  # perhaps more than fit into memory
        raise DataError(
            f"{root}: an image of train has the label {train[-1]}, but there are only "
            f"{len(labels['train'])} of them. Number the classes from 0, without gaps"
        )
    count = count or train[-1] + 1
    for split, values in (("train", train), ("val", val)):
        if values[0] < 0 or values[-1] >= count:
            wrong = values[0] if values[0] < 0 else values[-1]
            raise DataError(
                f"{root}: an image of {split} has the label {wrong}; expected 0 to {count - 1}"
            )
    digits = max(4, len(str(count - 1)))
    return [f"{number:0{digits}d}" for number in range(count)]


# --- Parquet files. Images in them are compressed in groups, so they are unpacked before.


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"parquet files need pyarrow ({error}): pip install -e .[parquet]"
        ) from error
    return pyarrow.parquet


def _of_parquet(root: Path, files: dict[str, list[Path]]) -> dict[str, Listing]:
    parquet, tables, labels, count = _parquet(), {}, {}, 0
    for split, paths in files.items():
        tables[split], labels[split] = [], []
        for number, path in enumerate(paths):
            try:
                file = parquet.ParquetFile(path)
                if missing := {"image", "label"} - {*file.schema_arrow.names}:
                    raise DataError(
                        f"{path} has the columns {', '.join(file.schema_arrow.names)}; expected "
                        f"image and label, and {' and '.join(sorted(missing))} is missing"
                    )
                values = file.read(columns=["label"])["label"].to_pylist()
                size = path.stat().st_size // max(1, len(values))
                about = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
                label_type = about.get("info", {}).get("features", {}).get("label", {})
                count = max(count, len(label_type.get("names") or []))
            except (OSError, ValueError) as error:  # pyarrow's errors are these
                raise DataError(f"{path} cannot be read as parquet: {error}") from error
            if None in values:
                raise DataError(f"{path}: row {values.index(None)} has no label")
            if values:
                names = [b"%05d-%06d.jpg" % (number, row) for row in range(len(values))]
                tables[split].append(table(number, values, names, range(len(values)), size))
                labels[split] += values
    classes = _number_classes(root, labels, count)
    return {
        split: Listing(
            root,
            classes,
            [path.relative_to(root).as_posix() for path in files[split]],
            np.concatenate(tables[split]),
        )
        for split in SPLITS
    }


def unpack(source: ImageSource, scratch: Path) -> dict[str, Listing]:
    """Return the images of parquet files as parts of files in a folder, which is filled.

    Those of files that it already contains are not read again.

    Raises:
        DataError: a file is damaged; the message names it.
    """
    splits = {}
    for split, listing in source.splits.items():
        all_sizes, containers = [], []
        paths = [source.root / name for name in listing.containers]
        for number, path in enumerate(tqdm(paths, f"unpacking {split}", unit=" files")):
            containers.append(f"{split}-{number:05d}.images")
            lengths = scratch / f"{split}-{number:05d}.npy"
            if not lengths.exists():
                sizes = _unpack_file(path, scratch / containers[-1])
                with complete_file(lengths) as file:
                    np.save(file, sizes)
            all_sizes.append(np.load(lengths))
        rows, offsets = listing.rows, [np.cumsum(sizes) - sizes for sizes in all_sizes]
        columns = np.concatenate(offsets), np.concatenate(all_sizes)
        rows = table(rows["container"], rows["label"], rows["name"], *columns)
        splits[split] = Listing(scratch, listing.classes, containers, rows)
    return splits


def _unpack_file(path: Path, target: Path) -> np.ndarray:
    """Write the images of a parquet file one after another, and return their lengths."""
    lengths = []
    try:
        with complete_file(target) as file:
            for batch in _parquet().ParquetFile(path).iter_batches(100, columns=["image"]):
                for image in batch["image"].to_pylist():
                    data = image["bytes"] if isinstance(image, dict) else image
                    if not data:
                        raise DataError(
                            f"{path}: row {len(lengths)} has no bytes in image; expected the "
                            f"bytes of an image file, not only its path"
                        )
                    file.write(data)
                    lengths.append(len(data))
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # the disk is full
            raise
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    return np.array(lengths, dtype=np.int64)
