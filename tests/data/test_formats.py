"""Conversions: exact contents, resumed after interruptions, damaged images named."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from job_helpers import eventually, small_disk
from PIL import Image, PngImagePlugin
from typer.testing import CliRunner

from course.__main__ import app
from course.config import rung
from course.data import default_set, folders
from course.data.default_set import DataError
from course.data.formats import convert
from course.data.formats.convert import KINDS, SMALL_PX
from course.data.formats.raw import Raw
from course.data.images import open_image
from course.data.loader import image_sets, loaders

# A background job of a shell inherits an ignored SIGINT.
SCRIPT = """
import signal, sys
from pathlib import Path
from course.data.formats import convert
signal.signal(signal.SIGINT, signal.default_int_handler)
convert.MIN_PART, convert.MAX_PARTS = 4, 10_000
convert.convert(sys.argv[1], Path(sys.argv[2]))
"""
PX = 64  # in place of SMALL_PX


@pytest.fixture
def large(tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """48 files that a test may damage; they are converted in small parts."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    monkeypatch.setattr(convert, "MIN_PART", 10)
    return shutil.copytree(tiny_set, tmp_path / "photos")


@pytest.fixture
def photos(small_set: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files with a quarter of the width."""
    monkeypatch.setattr(convert, "SMALL_PX", PX)
    shutil.rmtree(large)
    return shutil.copytree(small_set, large)


def classes_of(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "train").iterdir())


def checksums(folder: Path) -> dict[str, str]:
    splits = convert.index(folder)["splits"].values()
    parts = [part for split in splits for part in split["parts"]]
    return {name: about["sha256"] for part in parts for name, about in part["files"].items()}


def times(folder: Path, pattern: str) -> dict[str, int]:
    paths = folder.rglob(pattern)
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


def partial_folder(kind: str, root: Path) -> Path:
    target = convert.target_folder(kind, root)
    return target.with_name(f"{target.name}.partial")


def start(kind: str, root: Path, cache: Path) -> subprocess.Popen:
    env = os.environ | {"COURSE_DATA": str(cache / "default")}
    command = [sys.executable, "-c", SCRIPT, kind, str(root)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_shards_contain_each_file_and_its_class(photos: Path) -> None:
    folder = convert.convert("shards", photos)
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
    folder = convert.convert("small", large)
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
    folder = convert.convert("raw", photos)
    images = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("val/images-*.npy"))]
    labels = np.concatenate([np.load(path) for path in sorted(folder.glob("val/labels-*.npy"))])
    pixels = np.concatenate([part[:, PX // 2, PX // 2] for part in images]).astype(int)
    assert images[0].shape[1:] == (PX, PX, 3) and images[0].dtype == np.uint8
    assert sorted(labels) == [*range(16)] and [*labels] != sorted(labels)
    assert abs(pixels[:, 0] - 10 * labels).max() <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_reproducible_and_indexed(kind: str, photos: Path, monkeypatch) -> None:
    folder = convert.convert(kind, photos)
    first, index = checksums(folder), convert.index(folder)
    assert [index["splits"][split]["images"] for split in ("train", "val")] == [32, 16]
    assert index["classes"] == classes_of(photos)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {*first, convert.INDEX}
    assert convert.convert(kind, photos) == folder
    shutil.rmtree(folder)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert checksums(convert.convert(kind, photos)) == first


@pytest.mark.slow
def test_an_interrupted_conversion_continues(large: Path, tmp_path: Path) -> None:
    folder, partial = convert.target_folder("raw", large), partial_folder("raw", large)
    process = start("raw", large, tmp_path / "cache")
    eventually(lambda: len([*partial.glob("done/*.json")]) > 1, "some parts are done")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0 and not folder.exists()
    before = times(partial / "train", "images-*.npy")
    assert 0 < len(before) < 8
    both = [start("raw", large, tmp_path / "cache") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    after = times(folder / "train", "images-*.npy")
    assert len(after) == 8 and before.items() <= after.items()
    assert len(checksums(folder)) == 2 * 12 and not partial.exists()


def test_a_damaged_image_is_named_and_skipped_only_on_request(photos: Path) -> None:
    image = photos / "val" / "tissue" / "tissue_00000.jpg"
    image.write_bytes(image.read_bytes()[:2000])
    with pytest.raises(DataError, match="tissue_00000.jpg cannot be decoded .* --skip-damaged"):
        convert.convert("small", photos)
    partial = partial_folder("small", photos)
    (partial / "train" / ".unfinished-x").touch()  # of a process that was killed
    next(partial.glob("train/cat/*.jpg")).unlink()
    before = times(partial, "*.jpg")
    folder = convert.convert("small", photos, skip_damaged=True)
    after = times(folder, "*.jpg")
    assert len(after) == 47 and len(before.items() & after.items()) >= 20
    assert not [*folder.rglob(".unfinished*")]
    splits = convert.index(folder)["splits"]
    assert (splits["train"]["images"], splits["train"]["damaged"]) == (32, [])
    assert (splits["val"]["images"], splits["val"]["damaged"]) == (
        15,
        ["val/tissue/tissue_00000.jpg"],
    )


def png(mode: str = "L", size: tuple[int, int] = (14_000, 14_000)) -> bytes:
    """A PNG file; by default a small file that decodes to hundreds of megabytes."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


def png_with(name: bytes, data: bytes) -> bytes:
    """A PNG file with this chunk after its header."""
    content = png("RGB", (300, 300))
    checksum = zlib.crc32(name + data).to_bytes(4, "big")
    chunk = len(data).to_bytes(4, "big") + name + data + checksum
    return content[:33] + chunk + content[33:]


def huge_jpeg() -> bytes:
    """A JPEG file whose header claims 65,000 × 65,000 pixels: 12 GB as an image."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (65_000).to_bytes(2, "big") * 2
    return bytes(data)


DAMAGED = {
    "decompression bomb": png,
    "bomb in JPEG": huge_jpeg,
    "oversized text": lambda: png_with(
        b"zTXt", b"a\0\0" + zlib.compress(bytes(2 * PngImagePlugin.MAX_TEXT_CHUNK))
    ),
    "broken PNG": lambda: png_with(b"\0\0\0\0", b""),
    "short header": lambda: png()[:20],
    "too long for JPEG": lambda: png("1", (70_000, 60)),
    "empty": bytes,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_named_whatever_the_decoder_raises(photos: Path, damage: str) -> None:
    image = photos / "train" / "cat" / "cat_00000.jpg"
    image.write_bytes(DAMAGED[damage]())
    with pytest.raises(DataError, match=f"{image} cannot be decoded .* --skip-damaged"):
        convert.convert("small", photos)
    if damage != "too long for JPEG":
        with pytest.raises(DataError, match=f"{image} cannot be decoded"):
            open_image(str(image))


@pytest.mark.parametrize("kind", KINDS)
def test_any_damaged_image_can_be_skipped(photos: Path, kind: str) -> None:
    files = sorted((photos / "train").glob("*/*_00000.jpg"))
    for path, content in zip(files, DAMAGED.values()):
        path.write_bytes(content())
    train = convert.index(convert.convert(kind, photos, skip_damaged=True))["splits"]["train"]
    damaged = len(DAMAGED) - (kind != "small")  # only JPEG limits the length
    assert (train["images"], len(train["damaged"])) == (32 - damaged, damaged)


def test_hidden_files_and_folders_are_skipped(photos: Path, capsys) -> None:
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(photos), batch_size=8)
    classes, labels = classes_of(photos), [*image_sets(cfg).train.targets]
    capsys.readouterr()
    for split in ("train", "val"):
        for folder in (photos / split / ".ipynb_checkpoints", photos / split / "cat" / ".cache"):
            folder.mkdir()
            Image.new("RGB", (300, 300)).save(folder / "x.jpg")
        (photos / split / "cat" / "._x.JPEG").write_bytes(b"written by macOS")
    for kind in ("files", "gpu_decode", *KINDS):
        if kind in KINDS:
            command = ["data", "--as", kind, "--data-root", str(photos)]
            result = CliRunner().invoke(app, command)
            assert f"{photos}: skipped 6 hidden files and folders" in result.stderr
            assert "train: 32 images" in result.stdout
        sets = image_sets(replace(cfg, format=kind))
        assert (sets.train.classes, len(sets.train)) == (classes, 32)
        if kind != "raw":
            assert sets.train.targets == labels
        if kind in ("files", "gpu_decode", "shards"):
            message = f"{photos / 'train'}: skipped 3 hidden files and folders"
            assert message in capsys.readouterr().err


def test_only_files_are_images_and_links_are_followed(photos: Path) -> None:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert folders.SUFFIXES == IMG_EXTENSIONS
    (photos / "train" / "cat" / "folder.jpg").mkdir()
    (photos / "train" / "cat" / "nowhere.jpg").symlink_to(photos / "gone.jpg")
    linked = photos.parent / "elsewhere"
    (photos / "train" / "cat" / "more").symlink_to(linked)
    linked.mkdir()
    Image.new("RGB", (300, 300)).save(linked / "more.jpg")
    assert convert.index(convert.convert("small", photos))["splits"]["train"]["images"] == 33


def test_changed_images_and_missing_files_are_converted_again(photos: Path) -> None:
    folder = convert.convert("small", photos)
    before = checksums(folder)
    Image.new("RGB", (300, 300), "red").save(photos / "val" / "cat" / "cat_00000.jpg")
    after = checksums(convert.convert("small", photos))
    assert {name for name in before if before[name] != after[name]} == {"val/cat/cat_00000.jpg"}
    lost = folder / "train" / "cat" / "cat_00001.jpg"
    lost.unlink()
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(photos), format="small")
    with pytest.raises(DataError, match="train: expected 32 images .* 31 .*--as small"):
        image_sets(cfg)
    assert convert.convert("small", photos) == folder and lost.is_file()


@pytest.mark.parametrize("at", ["rename", "rmtree"])
def test_an_interrupted_replacement_leaves_one_complete_set(photos: Path, at: str, monkeypatch):
    folder = convert.convert("small", photos)
    (photos / "val" / "cat" / "cat_00000.jpg").touch()
    rmtree = shutil.rmtree

    def interrupt(path: Path, *args: object, **options: object) -> None:
        if at == "rmtree" and path != folder / convert.DONE:
            rmtree(path, *args, **options)
        else:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*((Path, "rename") if at == "rename" else (shutil, "rmtree")), interrupt)
        convert.convert("small", photos)
    assert len([*folder.rglob("*.jpg")]) == 48  # the old set or the new one
    assert convert.convert("small", photos) == folder and len(checksums(folder)) == 48


def test_images_that_change_during_a_conversion_are_noticed(photos: Path) -> None:
    listing, target = convert.list_images(photos), convert.target_folder("small", photos)
    (photos / "val" / "cat" / "cat_00000.jpg").touch()
    plan = {"kind": "small", "listing": listing.digest}
    with pytest.raises(DataError, match="were changed while they were converted"):
        convert._convert_all(target, listing, plan, skip_damaged=False)
    assert not target.exists()


def test_a_full_disk_keeps_complete_parts(large: Path, tmp_path: Path, monkeypatch) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        monkeypatch.setenv("COURSE_DATA", str(disk / "default"))
        with pytest.raises(DataError, match="No space left on device .*kept.*COURSE_DATA"):
            convert.convert("raw", large)
        (partial,) = disk.glob("*.partial")
        notes = [json.loads(path.read_text()) for path in partial.glob("done/*.json")]
        assert notes and not [*disk.glob("*-raw/index.json")]
        for name, about in (file for note in notes for file in note["files"].items()):
            assert (partial / name).stat().st_size == about["bytes"]


def test_bad_requests_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'zip': choose shards, small, raw"):
        convert.convert("zip", photos)
    with pytest.raises(DataError, match="no folder .*train"):
        convert.convert("raw", tmp_path / "nowhere")
    with pytest.raises(DataError, match="no converted images: make raw by course data --as"):
        convert.index(tmp_path, "raw")
    with pytest.raises(DataError, match="contains small: make raw by course data --as raw"):
        convert.index(convert.convert("small", photos), "raw")
    target = convert.target_folder("raw", photos)
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="contains files that are not converted images"):
        convert.convert("raw", photos)
    assert (target / "mine.txt").read_text() == "mine"
    for path in (photos / "val" / "cat").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="cat contains no image"):
        convert.convert("raw", photos)
    same_name = tmp_path / "a" / photos.name
    assert target != convert.target_folder("raw", same_name)
    default = default_set.default_root().resolve()
    assert convert.target_folder("raw", default) == default.parent / "default-raw"


def test_the_command_prints_its_result(photos: Path) -> None:
    command = ["data", "--as", "shards", "--data-root", str(photos)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert "train: 32 images in 4 files" in result.stdout
    assert f"in {convert.target_folder('shards', photos)}" in result.stdout
    assert "images/s" in result.stderr  # its progress
    index = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (index["kind"], index["splits"]["val"]["images"]) == ("shards", 16)


@pytest.mark.parametrize("kind", ["small", "raw"])
def test_training_uses_the_same_images_and_classes(kind: str, photos: Path) -> None:
    sizes = {"batch_size": 8, "image_px": 64}
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(photos), **sizes)
    converted = replace(cfg, format=kind)
    with pytest.raises(DataError, match=f"course data --as {kind} --data-root {photos}"):
        image_sets(converted)
    convert.convert(kind, photos)
    sets = image_sets(converted)
    assert (len(sets.train), len(sets.val), sets.classes) == (32, 16, 16)
    train, _ = loaders(sets, converted, torch.device("cpu"), num_workers=2)
    images, _ = next(iter(train))
    assert (images.dtype, images.shape) == (torch.uint8, (8, 3, 64, 64))
    means = [
        np.array(sorted((label, float(image.float().mean())) for image, label in each.val))
        for each in (image_sets(cfg), sets)
    ]
    assert abs(means[0] - means[1]).max() < 25
    assert [*means[0][:, 0]] == [*means[1][:, 0]] == [*range(16)]


def test_raw_indices_cross_parts(photos: Path) -> None:
    raw = Raw(convert.convert("raw", photos), "train", torch.clone)
    folder = convert.target_folder("raw", photos)
    labels = [np.load(path) for path in sorted(folder.glob("train/labels-*.npy"))]
    assert [raw[at][1] for at in range(32)] == np.concatenate(labels).tolist()
    with pytest.raises(IndexError):
        raw[32]
    (folder / "train" / "images-00001.npy").write_bytes(b"")
    fresh = Raw(folder, "train", torch.clone)
    with pytest.raises(DataError, match="images-00001.npy cannot be read"):
        fresh[12]
