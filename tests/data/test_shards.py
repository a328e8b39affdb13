"""Shards: each image once per pass, in random order, and readers that never wait forever."""

import io
import runpy
import shutil
import tarfile
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from course.config import rung
from course.data.folders import DataError
from course.data.formats import convert
from course.data.formats.shards import shuffled
from course.data.loader import ImageSets, image_sets, loaders
from course.runs.run import PROJECT

SHARDS = runpy.run_path(str(PROJECT / "solutions/train.py"), run_name="train")["Shards"]
CONFIG = rung("shards", quick=True, image_px=32, batch_size=4, steps=6, data="imagenet")


@pytest.fixture(scope="module")
def cache(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a cache with the training images of a small set in shards of eight."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DATA", str(cache / "default"))
        patch.setattr(convert, "MIN_PART", 8)
        convert.convert_set("shards", tiny_set)
    return cache


@pytest.fixture
def sets(cache: Path, tiny_set: Path, tmp_path: Path, monkeypatch) -> ImageSets:
    """Return the set and its shards, in a copy that a test may damage."""
    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    return image_sets(replace(CONFIG, data_root=str(tiny_set)))


@pytest.mark.parametrize("buffer", [0, 1, 7, 100])
def test_a_buffer_yields_each_image_once(buffer: int) -> None:
    torch.manual_seed(0)
    order = [*shuffled(iter(range(50)), buffer)]
    assert sorted(order) == [*range(50)]
    assert (order == [*range(50)]) == (buffer == 0)


def test_a_pass_has_every_image_once_and_another_follows(sets: ImageSets) -> None:
    cfg = replace(CONFIG, shuffle_buffer=4, workers=0)
    reader = SHARDS(sets, cfg)
    labels = Counter(label for _, label in islice(reader, len(sets.train)))
    assert labels == Counter(label for _, label in sets.train.samples)
    batches, _ = loaders(replace(sets, train=reader), cfg, torch.device("cpu"))
    count = 2 * len(sets.train) // 4
    assert len(results := [*islice(batches, count)]) == count
    assert results[0][0].shape == (4, 3, 32, 32) and results[0][0].dtype == torch.uint8


def test_two_workers_of_two_ranks_share_the_shards(sets: ImageSets) -> None:
    sums = []
    for rank in range(2):
        reader = SHARDS(sets, replace(CONFIG, shuffle_buffer=0), rank, 2)
        reader.transform = torch.clone  # complete images, whose sums differ
        batches = DataLoader(reader, batch_size=None, num_workers=2)
        sums += [int(image.sum()) for image, _ in islice(batches, len(sets.train) // 2)]
    assert len({*sums}) == len(sums) == len(sets.train)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def shard_with(path: Path, *images: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        for at, content in enumerate(images):
            add(tar, f"{at}.jpg", content)
            add(tar, f"{at}.cls", b"1")
    return path


def encode(mode: str, kind: str) -> bytes:
    data = io.BytesIO()
    Image.new(mode, (40, 30)).save(data, kind)
    return data.getvalue()


def test_damage_is_named(sets: ImageSets, tmp_path: Path) -> None:
    png = encode("RGB", "PNG")
    shard = shard_with(tmp_path / "set.tar", png, png[:60])
    with pytest.raises(DataError, match=f"{shard}, image 1, cannot be decoded"):
        list(islice(SHARDS(replace(sets, shards=(shard,)), CONFIG), 2))
    for content in (b"", b"no tar file" * 200):
        shard.write_bytes(content)
        with pytest.raises(DataError, match="set.tar cannot be read"):
            next(iter(SHARDS(replace(sets, shards=(shard,)), CONFIG)))


def test_a_set_that_changed_or_was_not_converted_is_refused(
    tiny_set: Path, sets: ImageSets, tmp_path: Path
) -> None:
    copy = shutil.copytree(tiny_set, tmp_path / "photos")
    cfg = replace(CONFIG, data_root=str(copy))
    with pytest.raises(DataError, match="course data --from .* --as shards"):
        image_sets(cfg)
    convert.convert_set("shards", copy)
    for split in ("train", "val"):
        shutil.copytree(copy / split / "cat", copy / split / "aardvark")
    with pytest.raises(DataError, match="Convert the set again: course data --from .* --as shards"):
        image_sets(cfg)
