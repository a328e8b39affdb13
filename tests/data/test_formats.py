"""Conversions: exact contents, resumed after interruptions, damaged images named."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from job_helpers import eventually, small_disk
from PIL import Image
from typer.testing import CliRunner

from course.__main__ import app
from course.config import rung
from course.data import folders
from course.data.folders import DataError
from course.data.formats import convert
from course.data.formats.convert import SMALL_PX
from course.data.formats.raw import Raw
from course.data.loader import image_sets, loaders

# A background job of a shell inherits an ignored SIGINT.
SCRIPT = """
import signal, sys, time
from pathlib import Path
from course.data.formats import convert
signal.signal(signal.SIGINT, signal.default_int_handler)
convert.MIN_PART, convert.MAX_PARTS = 1, 10_000
encode = convert._encode
convert._encode = lambda *args: time.sleep(float(sys.argv[3])) or encode(*args)
convert.convert_set(sys.argv[1], Path(sys.argv[2]))
"""
PX = 64  # in place of SMALL_PX


@pytest.fixture
def large(tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return 48 files that a test may damage; they are converted in small parts."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    monkeypatch.setattr(convert, "MIN_PART", 10)
    return shutil.copytree(tiny_set, tmp_path / "photos")


@pytest.fixture
def photos(small_set: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the same files at a quarter of the width."""
    monkeypatch.setattr(convert, "SMALL_PX", PX)
    shutil.rmtree(large)
    return shutil.copytree(small_set, large)


def classes_of(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "train").iterdir())


def checksums(folder: Path) -> dict[str, str]:
    splits = folders.index(folder)["splits"].values()
    parts = [part for split in splits for part in split["parts"]]
    names = [name for part in parts for name in part["files"]]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def times(folder: Path, pattern: str) -> dict[str, int]:
    paths = folder.rglob(pattern)
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


def partial_folder(kind: str, root: Path) -> Path:
    target = folders.target_folder(kind, root)
    return target.with_name(f"{target.name}.partial")


def start(kind: str, root: Path, cache: Path, image_s: float = 0) -> subprocess.Popen:
    env = os.environ | {"COURSE_DATA": str(cache / "default")}
    command = [sys.executable, "-c", SCRIPT, kind, str(root), str(image_s)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_shards_contain_each_file_and_its_class(photos: Path) -> None:
    folder = convert.convert_set("shards", photos)
    for split, count in (("train", 32), ("val", 16)):
        contents = []
        for path in sorted((folder / split).glob("*.tar")):
            with tarfile.open(path) as tar:
                names = tar.getnames()
                assert [Path(name).suffix for name in names] == [".jpg", ".cls"] * (len(names) // 2)
                data = [tar.extractfile(name).read() for name in names]
            contents += zip(data[::2], map(int, data[1::2]))
        sources = [
            (path.read_bytes(), label)
            for label, name in enumerate(classes_of(photos))
            for path in (photos / split / name).iterdir()
        ]
        assert len(contents) == count and sorted(contents) == sorted(sources)
        labels = [label for _, label in contents]
        assert labels != sorted(labels)  # classes are mixed


def test_small_files_keep_their_names_and_shapes(large: Path) -> None:
    Image.new("RGB", (40, 30)).save(large / "train" / "cat" / "tiny.png")
    folder = convert.convert_set("small", large)
    for path in large.glob("*/*/*.jpg"):
        with Image.open(path) as image, Image.open(folder / path.relative_to(large)) as small:
            assert min(small.size) == SMALL_PX <= min(image.size)
            assert small.width / small.height == pytest.approx(image.width / image.height, rel=0.01)
            expected = np.asarray(image.convert("RGB").resize(small.size), dtype=int)
            assert abs(np.asarray(small, dtype=int) - expected).mean() < 12
    with Image.open(folder / "train" / "cat" / "tiny.png.jpg") as tiny:
        assert tiny.size == (40, 30)  # small images are not enlarged


def test_raw_bytes_are_the_centre_of_each_image(photos: Path) -> None:
    for label, name in enumerate(classes_of(photos)):  # one colour per class
        for path in (photos / "val" / name).iterdir():
            Image.new("RGB", (300, 280), (label * 10, 0, 255 - label)).save(path, quality=100)
    folder = convert.convert_set("raw", photos)
    images = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("val/images-*.npy"))]
    labels = np.concatenate([np.load(path) for path in sorted(folder.glob("val/labels-*.npy"))])
    pixels = np.concatenate([part[:, PX // 2, PX // 2] for part in images]).astype(int)
    assert images[0].shape[1:] == (PX, PX, 3) and images[0].dtype == np.uint8
    assert sorted(labels) == [*range(16)] and [*labels] != sorted(labels)
    assert abs(pixels[:, 0] - 10 * labels).max() <= 3


@pytest.mark.parametrize("kind", folders.KINDS)
def test_bytes_are_reproducible_and_indexed(kind: str, photos: Path) -> None:
    folder = convert.convert_set(kind, photos)
    first, index = checksums(folder), folders.index(folder)
    assert [index["splits"][split]["images"] for split in ("train", "val")] == [32, 16]
    assert index["classes"] == classes_of(photos)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    lists = ["train.npy", "val.npy"] if kind == "shards" else []
    assert files == {*first, *lists, folders.INDEX}
    assert convert.convert_set(kind, photos) == folder
    shutil.rmtree(folder)
    assert checksums(convert.convert_set(kind, photos)) == first


@pytest.mark.slow
def test_an_interrupted_conversion_continues(large: Path, tmp_path: Path) -> None:
    folder, partial = folders.target_folder("raw", large), partial_folder("raw", large)
    process = start("raw", large, tmp_path / "cache", image_s=1)  # long enough to interrupt it
    eventually(lambda: len([*partial.glob("done*/*.json")]) > 1, "some parts are done")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0 and not folder.exists()
    before = times(partial / "train", "images-*.npy")
    assert 0 < len(before) < 32
    both = [start("raw", large, tmp_path / "cache") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    after = times(folder / "train", "images-*.npy")
    assert len(after) == 32 and before.items() <= after.items()
    assert len(checksums(folder)) == 2 * 48 and not partial.exists()


def test_a_damaged_image_is_named_and_skipped_only_on_request(photos: Path) -> None:
    image = photos / "val" / "tissue" / "tissue_00000.jpg"
    image.write_bytes(image.read_bytes()[:2000])
    with pytest.raises(DataError, match="tissue_00000.jpg cannot be decoded .* --skip-damaged"):
        convert.convert_set("small", photos)
    partial = partial_folder("small", photos)
    (partial / "train" / ".unfinished-x").touch()  # of a process that was killed
    next(partial.glob("train/cat/*.jpg")).unlink()
    before = times(partial, "*.jpg")
    command = ["data", "--as", "small", "--data-root", str(photos), "--skip-damaged"]
    result = CliRunner().invoke(app, command)
    assert "val: 15 images" in result.stdout, result.output
    folder = folders.target_folder("small", photos)
    after = times(folder, "*.jpg")
    assert len(after) == 47 and len(before.items() & after.items()) >= 20
    assert not [*folder.rglob(".unfinished*")]
    splits = folders.index(folder)["splits"]
    assert (splits["train"]["images"], splits["train"]["damaged"]) == (32, [])
    assert splits["val"]["damaged"] == ["val/tissue/tissue_00000.jpg"]


def test_changed_images_and_missing_files_are_converted_again(photos: Path) -> None:
    folder = convert.convert_set("small", photos)
    before = checksums(folder)
    Image.new("RGB", (300, 300), "red").save(photos / "val" / "cat" / "cat_00000.jpg")
    after = checksums(convert.convert_set("small", photos))
    assert {name for name in before if before[name] != after[name]} == {"val/cat/cat_00000.jpg"}
    lost = folder / "train" / "cat" / "cat_00001.jpg"
    lost.unlink()
    assert convert.convert_set("small", photos) == folder and lost.is_file()
    index = folder / folders.INDEX  # as if the set and its conversion had been moved together
    index.write_text(index.read_text().replace(str(photos), "/elsewhere"))
    assert convert.convert_set("small", photos) == folder
    assert folders.index(folder)["source"] == str(photos)


def test_too_little_space_is_refused_before_the_start(large: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        message = "has 4.* MB free, and the raw images need about 9.4 MB.*by --to"
        with pytest.raises(DataError, match=message):
            convert.convert_set("raw", large, disk / "raw")
        assert not [*disk.iterdir()]


def test_a_full_disk_keeps_complete_parts(large: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(convert, "_check_space", lambda *_: None)  # the disk fills up later
    with small_disk(tmp_path / "disk", "4m") as disk:
        monkeypatch.setenv("COURSE_DATA", str(disk / "default"))
        with pytest.raises(DataError, match="No space left on device .*GB free.*kept.*COURSE_DATA"):
            convert.convert_set("raw", large)
        (partial,) = disk.glob("*.partial")
        notes = [json.loads(path.read_text()) for path in partial.glob("done*/*.json")]
        assert notes and not [*disk.glob("*-raw/index.json")]
        assert all((partial / name).is_file() for note in notes for name in note["files"])


def test_bad_requests_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder .*expected one of"):
        convert.convert_set("raw", tmp_path / "nowhere")
    target = folders.target_folder("raw", photos)
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="contains files that are not the raw images.*: move it"):
        convert.convert_set("raw", photos)
    assert (target / "mine.txt").read_text() == "mine"
    for path in (photos / "val" / "cat").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="classes cat"):
        convert.convert_set("raw", photos)


@pytest.mark.parametrize("kind", ["small", "raw"])
def test_training_uses_the_same_images_and_classes(kind: str, photos: Path) -> None:
    sizes = {"batch_size": 8, "image_px": 64}
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(photos), **sizes)
    converted = replace(cfg, format=kind)
    with pytest.raises(DataError, match=f"course data --from {photos} --as {kind}"):
        image_sets(converted)
    convert.convert_set(kind, photos)
    sets = image_sets(converted)
    assert (len(sets.train), len(sets.val), sets.classes) == (32, 16, 16)
    train, _ = loaders(sets, converted, torch.device("cpu"), num_workers=2)
    images, _ = next(iter(train))
    assert (images.dtype, images.shape) == (torch.uint8, (8, 3, 64, 64))
    means = [
        np.array(sorted((label, float(image.float().mean())) for image, label in image_set.val))
        for image_set in (image_sets(cfg), sets)
    ]
    assert abs(means[0] - means[1]).max() < 25
    assert [*means[0][:, 0]] == [*means[1][:, 0]] == [*range(16)]


def test_raw_indices_cross_parts(photos: Path) -> None:
    raw = Raw(convert.convert_set("raw", photos), "train", torch.clone)
    folder = folders.target_folder("raw", photos)
    labels = [np.load(path) for path in sorted(folder.glob("train/labels-*.npy"))]
    assert [raw[at][1] for at in range(32)] == np.concatenate(labels).tolist()
    with pytest.raises(IndexError):
        raw[32]
