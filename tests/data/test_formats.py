"""The same images in other formats: all of them, once, and never a half taken for whole."""

import io
import json
import os
import pickle
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
from course.data.formats import convert, parts
from course.data.formats.parts import KINDS, SMALL_PX
from course.data.formats.raw import Raw
from course.data.images import open_image
from course.data.loader import image_sets, loaders

# A converter may have inherited an ignored SIGINT, as jobs in a shell's background do.
CONVERTER = """
import signal, sys
from pathlib import Path
from course.data.formats import convert
signal.signal(signal.SIGINT, signal.default_int_handler)
convert.LEAST, convert.MOST_PARTS = 4, 10_000
convert.convert(sys.argv[1], Path(sys.argv[2]))
"""


PX = 64  # instead of SMALL_PX, of photographs that are as much smaller


@pytest.fixture
def large(tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of 48 files that a test may damage; converted in small parts, beside it."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    monkeypatch.setattr(convert, "LEAST", 10)
    return shutil.copytree(tiny_set, tmp_path / "photos")


@pytest.fixture
def own(small_set: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with a quarter of their width, where pixels are not the subject."""
    monkeypatch.setattr(parts, "SMALL_PX", PX)
    shutil.rmtree(large)
    return shutil.copytree(small_set, large)


def classes_of(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "train").iterdir())


def files_of(folder: Path) -> dict[str, str]:
    """Each file that the index names, and its checksum."""
    splits = convert.index(folder)["splits"].values()
    made = [part for split in splits for part in split["parts"]]
    return {name: about["sha256"] for part in made for name, about in part["files"].items()}


def start(kind: str, root: Path, cache: Path) -> subprocess.Popen:
    env = os.environ | {"COURSE_DATA": str(cache / "default")}
    command = [sys.executable, "-c", CONVERTER, kind, str(root)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_shards_hold_each_file_as_it_is_with_its_class(own: Path) -> None:
    folder = convert.convert("shards", own)
    for split, count in (("train", 32), ("val", 16)):
        found = []
        for path in sorted((folder / split).glob("*.tar")):
            with tarfile.open(path) as tar:
                names = tar.getnames()
                assert [name.partition(".")[2] for name in names] == ["jpg", "cls"] * (
                    len(names) // 2
                )
                data = [tar.extractfile(name).read() for name in names]
            found += zip(data[::2], map(int, data[1::2]))
        lying = [
            (path.read_bytes(), label)
            for label, name in enumerate(classes_of(own))
            for path in (own / split / name).iterdir()
        ]
        assert len(found) == count and sorted(found) == sorted(lying)
        labels = [label for _, label in found]
        assert labels != sorted(labels)  # a shard mixes classes


def test_small_files_keep_their_names_and_shapes(large: Path) -> None:
    Image.new("RGB", (40, 30)).save(large / "train" / "cat" / "tiny.png")
    folder = convert.convert("small", large)
    for path in large.glob("*/*/*.jpg"):
        with Image.open(path) as image, Image.open(folder / path.relative_to(large)) as small:
            assert min(small.size) == SMALL_PX <= min(image.size)
            assert small.width / small.height == pytest.approx(image.width / image.height, rel=0.01)
            near = np.asarray(image.convert("RGB").resize(small.size), dtype=int)
            assert abs(np.asarray(small, dtype=int) - near).mean() < 12
    with Image.open(folder / "train" / "cat" / "tiny.png.jpg") as tiny:
        assert tiny.size == (40, 30)  # nothing is enlarged


def test_raw_bytes_are_the_middle_of_each_image(own: Path) -> None:
    for label, name in enumerate(classes_of(own)):  # a colour for each class
        for path in (own / "val" / name).iterdir():
            Image.new("RGB", (300, 280), (label * 10, 0, 255 - label)).save(path, quality=100)
    folder = convert.convert("raw", own)
    images = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("val/images-*.npy"))]
    labels = np.concatenate([np.load(path) for path in sorted(folder.glob("val/labels-*.npy"))])
    pixels = np.concatenate([each[:, PX // 2, PX // 2] for each in images]).astype(int)
    assert images[0].shape[1:] == (PX, PX, 3) and images[0].dtype == np.uint8
    assert sorted(labels) == [*range(16)] and [*labels] != sorted(labels)
    assert abs(pixels[:, 0] - 10 * labels).max() <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_equal_bytes_and_the_index_counts_them(kind: str, own: Path, monkeypatch) -> None:
    folder = convert.convert(kind, own)
    first, about = files_of(folder), convert.index(folder)
    assert {name: split["images"] for name, split in about["splits"].items()} == {
        "train": 32,
        "val": 16,
    }
    assert about["classes"] == classes_of(own) and len(first) == len({*first})
    lying = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert lying == {*first, convert.INDEX}
    assert convert.convert(kind, own) == folder  # at once
    shutil.rmtree(folder)
    monkeypatch.setattr(convert, "_cores", lambda: 1)
    assert files_of(convert.convert(kind, own)) == first


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(large: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    partial = convert.place("raw", large).with_name(f"{convert.place('raw', large).name}.partial")
    maker = start("raw", large, cache)
    eventually(lambda: len([*partial.glob("done/*.json")]) > 1, "some parts are done")
    maker.send_signal(signal.SIGINT)
    assert maker.wait(60) != 0 and not convert.place("raw", large).exists()
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("train/images-*.npy")}
    assert 0 < len(kept) < 8
    assert start("raw", large, cache).wait(60) == 0
    folder = convert.place("raw", large)
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("train/images-*.npy")}
    assert len(after) == 8 and kept.items() <= after.items()
    assert convert.index(folder)["splits"]["train"]["images"] == 32 and not partial.exists()


@pytest.mark.slow
def test_two_at_once_make_one(large: Path, tmp_path: Path) -> None:
    both = [start("small", large, tmp_path / "cache") for _ in range(2)]
    assert [maker.wait(60) for maker in both] == [0, 0]
    assert len(files_of(convert.place("small", large))) == 48


def test_a_damaged_image_is_named_and_left_out_only_when_asked(own: Path) -> None:
    bad = own / "train" / "cat" / "cat_00001.jpg"
    bad.write_bytes(bad.read_bytes()[:2000])
    with pytest.raises(DataError, match="cat_00001.jpg cannot be decoded .* --skip-damaged"):
        convert.convert("shards", own)
    assert not convert.place("shards", own).exists()
    about = convert.index(convert.convert("shards", own, skip_damaged=True))
    assert about["splits"]["train"]["images"] == 31
    assert about["splits"]["train"]["damaged"] == ["train/cat/cat_00001.jpg"]
    assert about["splits"]["val"] | {"parts": 0} == {"images": 16, "damaged": [], "parts": 0}


def bomb(mode: str = "L", size: tuple[int, int] = (14_000, 14_000)) -> bytes:
    """A small PNG file that would fill hundreds of megabytes."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


def png_with(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file with these chunks behind its header."""
    whole = bomb("RGB", (300, 300))
    packed = b""
    for name, data in chunks:
        check = zlib.crc32(name + data).to_bytes(4, "big")
        packed += len(data).to_bytes(4, "big") + name + data + check
    return whole[:33] + packed + whole[33:]


def huge_jpeg() -> bytes:
    """A JPEG file whose header claims 65,000 × 65,000 pixels: 12 GB as an image."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (65_000).to_bytes(2, "big") * 2
    return bytes(data)


DAMAGED = {
    "decompression bomb": bomb,
    "bomb in JPEG": huge_jpeg,
    "oversized text": lambda: png_with(
        (b"zTXt", b"a\0\0" + zlib.compress(bytes(2 * PngImagePlugin.MAX_TEXT_CHUNK)))
    ),
    "broken PNG": lambda: png_with((b"\0\0\0\0", b"")),
    "short header": lambda: bomb()[:20],
    "too long for JPEG": lambda: bomb("1", (70_000, 60)),
    "empty": bytes,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_whatever_a_decoder_raises_the_file_is_named(own: Path, damage: str) -> None:
    bad = own / "train" / "cat" / "cat_00000.jpg"
    bad.write_bytes(DAMAGED[damage]())
    with pytest.raises(DataError, match=f"{bad} cannot be decoded .* --skip-damaged"):
        convert.convert("small", own)
    if damage != "too long for JPEG":
        with pytest.raises(DataError, match=f"{bad} cannot be decoded"):
            open_image(str(bad))


@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_image_ends_a_conversion_that_skips_them(own: Path, kind: str) -> None:
    for path, content in zip(sorted((own / "train").glob("*/*_00000.jpg")), DAMAGED.values()):
        path.write_bytes(content())
    about = convert.index(convert.convert(kind, own, skip_damaged=True))["splits"]["train"]
    damaged = len(DAMAGED) - (kind != "small")  # only JPEG knows images that are too long
    assert (about["images"], len(about["damaged"])) == (32 - damaged, damaged)


def test_hidden_files_and_folders_are_no_class_and_no_image(own: Path, capsys) -> None:
    cfg = rung(
        "baseline", quick=True, data="imagenet", data_root=str(own), batch_size=8, image_px=64
    )
    classes, labels = classes_of(own), [*image_sets(cfg).train.targets]
    capsys.readouterr()
    for split in ("train", "val"):
        for folder in (own / split / ".ipynb_checkpoints", own / split / "cat" / ".cache"):
            folder.mkdir()
            Image.new("RGB", (300, 300)).save(folder / "x.jpg")
        (own / split / "cat" / "._x.JPEG").write_bytes(b"no image, but of macOS")
    for form in ("files", "gpu_decode", *KINDS):
        if form in KINDS:
            done = CliRunner().invoke(app, ["data", "--as", form, "--data-root", str(own)])
            assert f"{own}: skipped 6 hidden files and folders" in done.stderr
            assert "train: 32 images" in done.stdout
        sets = image_sets(replace(cfg, format=form))
        assert (sets.train.classes, len(sets.train)) == (classes, 32)
        if form != "raw":
            assert sets.train.targets == labels
        if form in ("files", "gpu_decode", "shards"):
            said = capsys.readouterr().err
            assert f"{own / 'train'}: skipped 3 hidden files and folders" in said


def test_what_was_done_before_an_image_was_found_damaged_is_kept(own: Path) -> None:
    bad = sorted((own / "val").glob("*/*.jpg"))[-1]
    bad.write_bytes(bad.read_bytes()[:2000])
    with pytest.raises(DataError, match="cannot be decoded"):
        convert.convert("small", own)
    partial = convert.place("small", own).with_name(f"{convert.place('small', own).name}.partial")
    kept = {path.relative_to(partial): path.stat().st_mtime_ns for path in partial.rglob("*.jpg")}
    folder = convert.convert("small", own, skip_damaged=True)
    after = {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*.jpg")}
    assert len(after) == 47 and len(kept.items() & after.items()) >= 30


@pytest.mark.parametrize("at", ["rename", "rmtree"])
def test_interrupted_while_an_older_one_is_replaced(own: Path, at: str, monkeypatch) -> None:
    folder = convert.convert("small", own)
    (own / "val" / "cat" / "cat_00000.jpg").touch()
    calls = []

    def interrupt(of: object, *_: object, **__: object) -> None:
        calls.append(of)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "rename":
            patch.setattr(Path, "rename", interrupt)
        else:  # the second one: when both have their place
            real = shutil.rmtree
            patch.setattr(
                shutil,
                "rmtree",
                lambda path, **how: (
                    interrupt(path) if path == folder / convert.DONE else real(path, **how)
                ),
            )
        with pytest.raises(KeyboardInterrupt):
            convert.convert("small", own)
    assert calls and len([*folder.rglob("*.jpg")]) == 48  # the old one, or the new one
    made = {path.name: path.stat().st_mtime_ns for path in folder.parent.rglob("images-*.npy")}
    assert convert.convert("small", own) == folder
    assert len(files_of(folder)) == 48
    assert made == {path.name: path.stat().st_mtime_ns for path in folder.rglob("images-*.npy")}


def test_a_noted_part_without_its_files_is_made_again(own: Path, tmp_path: Path) -> None:
    bad = own / "val" / "tissue" / "tissue_00000.jpg"
    whole = bad.read_bytes()
    bad.write_bytes(b"")
    with pytest.raises(DataError, match="cannot be decoded"):
        convert.convert("raw", own)
    (partial,) = convert.place("raw", own).parent.glob("*.partial")
    gone = sorted(partial.glob("train/images-*.npy"))[0]
    gone.unlink()
    (partial / "train" / ".unfinished-x").touch()  # of one that was killed
    folder = convert.convert("raw", own, skip_damaged=True)
    assert (folder / "train" / gone.name).is_file() and not [*folder.rglob(".unfinished*")]
    bad.write_bytes(whole)


def test_a_converted_set_that_lost_images_is_not_trained_on(own: Path) -> None:
    cfg = rung("baseline", quick=True, data="imagenet", data_root=str(own), format="small")
    folder = convert.convert("small", own)
    (folder / "train" / "cat" / "cat_00001.jpg").unlink()
    with pytest.raises(DataError, match="train holds 31 of the 32 images .*--as small again"):
        image_sets(cfg)


def test_what_is_no_file_is_no_image(own: Path) -> None:
    (own / "train" / "cat" / "folder.jpg").mkdir()
    (own / "train" / "cat" / "nowhere.jpg").symlink_to(own / "gone.jpg")
    linked = own.parent / "elsewhere"
    (own / "train" / "cat" / "more").symlink_to(linked)
    linked.mkdir()
    Image.new("RGB", (300, 300)).save(linked / "more.jpg")
    about = convert.index(convert.convert("small", own))
    assert about["splits"]["train"]["images"] == 33


def test_images_that_change_make_it_anew(own: Path) -> None:
    folder = convert.convert("small", own)
    before = files_of(folder)
    path = own / "val" / "cat" / "cat_00000.jpg"
    Image.new("RGB", (300, 300), "red").save(path)
    after = files_of(convert.convert("small", own))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"val/cat/cat_00000.jpg"}


def test_images_that_change_meanwhile_are_noticed(own: Path) -> None:
    found, target = convert.listed(own), convert.place("small", own)
    (own / "val" / "cat" / "cat_00000.jpg").touch()
    wanted = {"kind": "small", "listing": found.digest}
    with pytest.raises(DataError, match="were changed while they were converted"):
        convert._make(target, found, wanted, skip_damaged=False)
    assert not target.exists()


def test_a_file_that_is_gone_is_made_again(own: Path) -> None:
    folder = convert.convert("raw", own)
    (folder / "train" / "images-00002.npy").unlink()
    assert convert.convert("raw", own) == folder
    assert (folder / "train" / "images-00002.npy").is_file()


def test_a_full_disk_keeps_what_is_done(large: Path, tmp_path: Path, monkeypatch) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        monkeypatch.setenv("COURSE_DATA", str(disk / "default"))
        with pytest.raises(DataError, match="No space left on device .*kept.*COURSE_DATA"):
            convert.convert("raw", large)
        (partial,) = disk.glob("*.partial")
        notes = [json.loads(path.read_text()) for path in partial.glob("done/*.json")]
        assert notes and not [*disk.glob("*-raw/index.json")]
        for note in notes:  # what is noted is there whole
            for name, about in note["files"].items():
                assert (partial / name).stat().st_size == about["bytes"]


def test_what_it_refuses(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'zip': choose shards, small, raw"):
        convert.convert("zip", own)
    with pytest.raises(DataError, match="no folder .*train"):
        convert.convert("raw", tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no converted images: make raw by course data --as"):
        convert.index(tmp_path, "raw")
    with pytest.raises(DataError, match="holds small: make raw by course data --as raw"):
        convert.index(convert.convert("small", own), "raw")
    target = convert.place("raw", own)
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="holds files that are no converted images"):
        convert.convert("raw", own)
    assert (target / "mine.txt").read_text() == "mine"
    for path in (own / "val" / "cat").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="cat holds no image"):
        convert.convert("raw", own)


def test_the_same_files_are_images_as_for_torchvision() -> None:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert folders.SUFFIXES == IMG_EXTENSIONS


def test_sets_of_one_name_lie_apart(own: Path, tmp_path: Path) -> None:
    assert convert.place("raw", tmp_path / "a" / "set") != convert.place("raw", tmp_path / "set")
    named = default_set.default_root().resolve()
    assert convert.place("raw", named) == named.parent / "default-raw"


def test_the_command_says_what_it_made(own: Path) -> None:
    words = ["data", "--as", "shards", "--data-root", str(own)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert "train: 32 images in 4 files" in done.stdout
    assert f"in {convert.place('shards', own)}" in done.stdout
    asked = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (asked["kind"], asked["splits"]["val"]["images"]) == ("shards", 16)
    assert "images/s" in done.stderr  # its progress


@pytest.mark.parametrize("kind", ["small", "raw"])
def test_trained_on_as_on_files(kind: str, own: Path) -> None:
    cfg = rung(
        "baseline",
        quick=True,
        data="imagenet",
        data_root=str(own),
        batch_size=8,
        image_px=64,
        format=kind,
    )
    with pytest.raises(DataError, match=f"course data --as {kind} --data-root {own}"):
        image_sets(cfg)
    convert.convert(kind, own)
    sets, files = image_sets(cfg), image_sets(replace(cfg, format="files"))
    assert (len(sets.train), len(sets.val), sets.classes) == (32, 16, 16)
    train, _ = loaders(sets, cfg, torch.device("cpu"), num_workers=2)
    images, labels = next(iter(train))
    assert (images.dtype, images.shape) == (torch.uint8, (8, 3, 64, 64))
    means = {}
    for name, each in (("files", files), (kind, sets)):  # the same images under the same classes
        found = sorted((label, float(image.float().mean())) for image, label in each.val)
        means[name] = np.array(found)
    assert abs(means["files"] - means[kind]).max() < 25
    assert [*means["files"][:, 0]] == [*means[kind][:, 0]] == [*range(16)]


def test_raw_bytes_cross_the_parts(own: Path) -> None:
    raw = Raw(convert.convert("raw", own), "train", torch.clone)
    assert len({image.numpy().tobytes() for image, _ in map(raw.__getitem__, range(32))}) == 32
    assert len(pickle.dumps(raw)) < 100_000  # what a worker is sent holds no image
    with pytest.raises(IndexError, match="image 32 of 32"):
        raw[32]
    assert sum(1 for _ in raw) == 32
