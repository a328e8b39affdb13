"""Shards: a stream of all images, out of a buffer, and never a reader without any."""

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
from cases import for_all
from PIL import Image
from torch.utils.data import DataLoader

from course.config import rung
from course.data.default_set import DataError
from course.data.formats import convert
from course.data.formats.shards import ShardReader, paths, shuffled
from course.data.loader import ImageSets, image_sets, loaders
from course.runs.run import PROJECT

SHARDS = runpy.run_path(str(PROJECT / "solutions/train.py"), run_name="train")["Shards"]
CONFIG = rung("shards", quick=True, image_px=32, batch_size=4, steps=6, data="imagenet")


@pytest.fixture(scope="module")
def converted(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the training images of a small set in shards of eight."""
    cache = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DATA", str(cache / "default"))
        patch.setattr(convert, "LEAST", 8)
        convert.convert("shards", tiny_set)
    return cache


@pytest.fixture
def stored(
    converted: Path, tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ImageSets:
    """The set and its shards, in a copy that a test may damage."""
    shutil.copytree(converted, tmp_path / "cache")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    return image_sets(replace(CONFIG, data_root=str(tiny_set)))


@for_all("buffer", [0, 1, 7, 100])
def test_a_buffer_keeps_every_image(buffer: int) -> None:
    torch.manual_seed(0)
    found = [*shuffled(iter(range(50)), buffer)]
    assert sorted(found) == [*range(50)]
    assert (found == [*range(50)]) == (buffer == 0)


def test_an_image_leaves_the_buffer_late_but_never_early() -> None:
    torch.manual_seed(0)
    found = [*shuffled(iter(range(1000)), 50)]
    assert all(image - place <= 50 for place, image in enumerate(found))
    assert max(place - image for place, image in enumerate(found)) > 100


def test_a_pass_has_every_image_once(stored: ImageSets) -> None:
    reader = SHARDS(stored, replace(CONFIG, shuffle_buffer=4))
    labels = Counter(label for _, label in islice(reader, len(stored.train)))
    assert labels == Counter(label for _, label in stored.train.samples)
    image, _ = next(iter(reader))
    assert image.shape == (3, 32, 32) and image.dtype == torch.uint8


def test_two_workers_of_two_ranks_share_the_shards(stored: ImageSets) -> None:
    seen = []
    for rank in range(2):
        reader = SHARDS(stored, replace(CONFIG, shuffle_buffer=0), rank, 2)
        reader.transform = torch.clone  # whole images, which tell one from another
        share = len(stored.train) // 2
        batches = DataLoader(reader, batch_size=None, num_workers=2)
        seen += [int(image.sum()) for image, _ in islice(batches, share)]
    assert len({*seen}) == len(seen) == len(stored.train)


def test_an_epoch_goes_on_where_the_files_end(stored: ImageSets) -> None:
    cfg = replace(CONFIG, workers=0)
    sets = replace(stored, train=SHARDS(stored, cfg))
    batches, _ = loaders(sets, cfg, torch.device("cpu"))
    many = 2 * len(stored.train) // 4
    assert len([*islice(batches, many)]) == many


def test_too_few_shards_are_told(stored: ImageSets) -> None:
    reader = SHARDS(stored, CONFIG, rank=9, world_size=10)
    with pytest.raises(DataError, match="shards are too few for all workers of 10 rank"):
        next(iter(reader))


def test_a_reader_must_say_how_images_come_out(stored: ImageSets) -> None:
    with pytest.raises(NotImplementedError, match="images_of"):
        next(iter(ShardReader(stored, CONFIG)))


def test_a_set_that_was_not_converted_is_told(tiny_set: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "elsewhere" / "default"))
    with pytest.raises(DataError, match="course data --as shards --data-root"):
        image_sets(replace(CONFIG, data_root=str(tiny_set)))


def test_paths_are_those_of_the_index(stored: ImageSets, tiny_set: Path) -> None:
    folder = convert.place("shards", tiny_set.resolve())
    assert [*stored.shards] == paths(folder, "train")
    assert all(path.exists() for path in stored.shards)


def member(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    return about, io.BytesIO(content)


def encoded(mode: str, kind: str) -> bytes:
    data = io.BytesIO()
    Image.new(mode, (40, 30)).save(data, kind)
    return data.getvalue()


def test_what_files_read_shards_read_too(stored: ImageSets, tmp_path: Path) -> None:
    shard = tmp_path / "odd.tar"  # ImageNet has a PNG and some in CMYK under names of JPEG files
    with tarfile.open(shard, "w") as tar:
        for at, content in enumerate((encoded("CMYK", "JPEG"), encoded("RGB", "PNG"))):
            tar.addfile(*member(f"{at}.jpg", content))
            tar.addfile(*member(f"{at}.cls", b"1"))
    reader = SHARDS(replace(stored, shards=(shard,)), CONFIG)
    assert [image.shape for image, _ in islice(reader, 2)] == [(3, 32, 32)] * 2


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "cut.tar cannot be read"),
        (b"no tar file" * 200, "cut.tar cannot be read"),
    ],
)
def test_a_damaged_shard_is_named(
    stored: ImageSets, tmp_path: Path, content: bytes, said: str
) -> None:
    shard = tmp_path / "cut.tar"
    shard.write_bytes(content)
    with pytest.raises(DataError, match=said):
        next(iter(SHARDS(replace(stored, shards=(shard,)), CONFIG)))


def test_a_damaged_image_in_a_shard_is_named_by_its_place(
    stored: ImageSets, tmp_path: Path
) -> None:
    shard = tmp_path / "set.tar"
    with tarfile.open(shard, "w") as tar:
        for at, content in enumerate((encoded("RGB", "PNG"), encoded("RGB", "PNG")[:60])):
            tar.addfile(*member(f"{at}.jpg", content))
            tar.addfile(*member(f"{at}.cls", b"1"))
    with pytest.raises(DataError, match=f"{shard}, image 1, cannot be decoded"):
        list(islice(SHARDS(replace(stored, shards=(shard,)), CONFIG), 2))


def test_a_shard_that_is_gone_or_cut_off_is_named(stored: ImageSets, tiny_set: Path) -> None:
    folder = convert.place("shards", tiny_set.resolve())
    shard = stored.shards[0]
    shard.write_bytes(shard.read_bytes()[:-512])
    with pytest.raises(DataError, match=f"{shard.name} is gone or cut off: run course data"):
        paths(folder, "train")


def test_a_set_that_changed_since_is_told(
    tiny_set: Path, stored: ImageSets, tmp_path: Path
) -> None:
    own = shutil.copytree(tiny_set, tmp_path / "photos")
    convert.convert("shards", own)
    first = next((own / "train").iterdir())
    next(first.iterdir()).unlink()
    with pytest.raises(DataError, match="convert the set again, by course data --as shards"):
        image_sets(replace(CONFIG, data_root=str(own)))


def test_shards_without_images_end(stored: ImageSets) -> None:
    reader = SHARDS(stored, CONFIG)
    reader.images_of = lambda shard: iter(())
    with pytest.raises(DataError, match="no image came out of .* what does images_of yield"):
        next(iter(reader))
