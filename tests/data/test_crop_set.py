"""The crops: training and validation use different parts of the photographs."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch

from course.config import CROPS_PX, Config, rung
from course.data import crop_set
from course.data.crop_set import SPLITS, TILE_PX, Crops, Recipe, ensure, is_complete
from course.data.default_set import PHOTOGRAPHS
from course.data.loader import image_sets, loaders

TINY = Recipe(train=512, val=96)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("crops") / "default-crops", TINY)


@pytest.fixture
def default_crops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a small set instead of this machine's crops."""
    monkeypatch.setenv("COURSE_DATA", str(folder.with_name("default")))
    monkeypatch.setattr(crop_set, "ensure", lambda: folder)
    return folder


def crops_config(**changes) -> Config:
    return rung("device", data="crops", warmup_steps=0, **changes)


def epoch(cfg: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images and labels of an epoch."""
    train, _ = loaders(image_sets(cfg), cfg, CPU)
    images, labels = zip(*islice(train, cfg.steps))
    return torch.cat(images), torch.cat(labels)


def test_shapes_types_and_classes(folder: Path) -> None:
    for split in SPLITS:
        crops, count = Crops(folder, split), getattr(TINY, split)
        assert crops.images.shape == (count, 3, CROPS_PX, CROPS_PX) and len(crops) == count
        assert (crops.images.dtype, crops.labels.dtype) == (torch.uint8, torch.int64)
        assert crops.labels.bincount().tolist() == [count // 16] * 16
        assert crops.labels[:16].unique().numel() > 4  # classes are mixed
        assert len(crops.images.flatten(1).unique(dim=0)) == count
    assert crops.classes == [*PHOTOGRAPHS]


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_no_pixel_is_in_both_splits(name: str) -> None:
    """Each crop's corners are in its own tile, and no tile is in both splits."""
    photo, random = crop_set._photograph(name), torch.Generator().manual_seed(1)
    tiles = crop_set.tiles(*photo.shape[1:], seed=0)
    train, val = ({*map(tuple, tiles[split].tolist())} for split in SPLITS)
    assert train and val and not train & val
    for split in SPLITS:
        tile = tiles[split][torch.randint(len(tiles[split]), (2000,), generator=random)]
        y, x, side, angle = crop_set.corners(tile, random).unbind(1)
        for down, right in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            row = y + side / 2 * (down * angle.cos() - right * angle.sin())
            column = x + side / 2 * (down * angle.sin() + right * angle.cos())
            for place, corner in ((row, tile[:, 0]), (column, tile[:, 1])):
                assert (place >= corner + 0.5).all() and (place <= corner + TILE_PX - 0.5).all()


def test_images_do_not_depend_on_the_batch_size(default_crops: Path) -> None:
    one, many = crops_config(batch_size=512, steps=1), crops_config(batch_size=32, steps=16)
    for large_batch, small_batches in zip(epoch(one), epoch(many)):
        assert torch.equal(large_batch, small_batches)
    assert len(epoch(many)[0].flatten(1).unique(dim=0)) > 500
    assert not torch.equal(epoch(one)[1], epoch(crops_config(batch_size=512, steps=1, seed=1))[1])


def test_validation_images_are_unchanged(default_crops: Path) -> None:
    cfg = crops_config(batch_size=64, steps=4)
    _, val = loaders(image_sets(cfg), cfg, CPU)
    images = torch.cat([images for images, _ in val]).flatten(1)
    stored = Crops(default_crops, "val").images.flatten(1)
    assert len(images) == TINY.val
    assert torch.equal(images.unique(dim=0), stored.unique(dim=0))


def test_incomplete_files_are_created_again(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    images = copy / "train.npy"
    images.write_bytes(images.read_bytes()[:-5])
    assert not is_complete(copy, TINY)
    assert Crops(ensure(copy, TINY), "train").images.equal(Crops(folder, "train").images)
