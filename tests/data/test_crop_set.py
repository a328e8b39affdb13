"""The crops: parts of photographs that training and validation do not share, taken by number."""

import math
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from cases import for_all

from course.config import CROPS_PX, Config, rung
from course.data import crop_set, default_set
from course.data.crop_set import SPLITS, TILE_PX, Crops, OnDevice, Recipe, ensure, is_whole
from course.data.default_set import PHOTOGRAPHS, DataError
from course.data.loader import image_sets, loaders

TINY = Recipe(train=512, val=96)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("crops") / "default-crops", TINY)


@pytest.fixture
def as_default(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """These few, where the crops of this machine would lie."""
    monkeypatch.setenv("COURSE_DATA", str(made.with_name("default")))
    monkeypatch.setattr(crop_set, "ensure", lambda: made)
    return made


def of_crops(**changes) -> Config:
    return rung("device", data="crops", warmup_steps=0, **changes)


def taken(cfg: Config, **own) -> tuple[torch.Tensor, torch.Tensor]:
    """All images and labels of an epoch."""
    train, _ = loaders(image_sets(cfg), cfg, CPU, **own)
    images, labels = zip(*islice(train, cfg.steps))
    return torch.cat(images), torch.cat(labels)


def test_shapes_types_and_classes(made: Path) -> None:
    for split in SPLITS:
        crops = Crops(made, split)
        count = getattr(TINY, split)
        assert crops.images.shape == (count, 3, CROPS_PX, CROPS_PX) and len(crops) == count
        assert (crops.images.dtype, crops.labels.dtype) == (torch.uint8, torch.int64)
        assert crops.labels.bincount().tolist() == [count // 16] * 16
        assert crops.labels[:16].unique().numel() > 4  # mixed, not class after class
    assert crops.classes == [*PHOTOGRAPHS]


def test_crops_differ(made: Path) -> None:
    images = torch.cat([Crops(made, split).images for split in SPLITS]).flatten(1)
    assert len(images.unique(dim=0)) == len(images)


@for_all("name", PHOTOGRAPHS)
def test_no_pixel_is_in_both_splits(name: str) -> None:
    """Of every crop the corners lie in its own tile, and no tile is in both splits."""
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


def test_a_crop_shows_its_place() -> None:
    """Rows count down and columns to the right; a turned one is turned about its middle."""
    rows, columns = torch.arange(96.0)[:, None], torch.arange(96.0)[None, :]
    photo = torch.stack([rows.expand(96, 96), columns.expand(96, 96), rows + columns])
    places = torch.tensor([[40.0, 50.0, 32.0, 0.0], [40.0, 50.0, 32.0, math.radians(90)]])
    upright, turned = crop_set._cut(photo, places, TINY)
    assert upright[0, :, 0].tolist() == pytest.approx([*range(24, 56)], abs=0.01)
    assert upright[1, 0].tolist() == pytest.approx([*range(34, 66)], abs=0.01)
    assert turned[0, 0].tolist() == pytest.approx([*range(55, 23, -1)], abs=0.01)


def test_batches_of_another_size_see_the_same_images(as_default: Path) -> None:
    one, many = of_crops(batch_size=512, steps=1), of_crops(batch_size=32, steps=16)
    for ours, theirs in zip(taken(one), taken(many)):
        assert torch.equal(ours, theirs)
    assert len(taken(many)[0].flatten(1).unique(dim=0)) > 500  # and each of them once
    other = of_crops(batch_size=512, steps=1, seed=1)
    assert not torch.equal(taken(one)[1], taken(other)[1])


def test_an_epoch_is_shuffled_and_changed_anew(as_default: Path) -> None:
    cfg = of_crops(batch_size=512, steps=1)
    train, _ = loaders(image_sets(cfg), cfg, CPU)
    (first, of_first), (second, of_second) = next(iter(train)), next(iter(train))
    assert not torch.equal(of_first, of_second)
    assert torch.equal(of_first.sort()[0], of_second.sort()[0])
    assert not torch.equal(first.flatten(1).sum(1).sort()[0], second.flatten(1).sum(1).sort()[0])


def test_ranks_take_shares_of_their_own(as_default: Path) -> None:
    cfg = of_crops(batch_size=64, steps=4)
    sets = image_sets(cfg)
    numbers = []
    for rank in range(2):
        sampler = torch.utils.data.DistributedSampler(sets.train, 2, rank, seed=cfg.seed)
        train, _ = loaders(sets, cfg, CPU, 32, sampler=sampler)
        numbers.append([int(each) for batch in train.batches for each in batch])
        assert len(numbers[-1]) == 128
    assert not {*numbers[0]} & {*numbers[1]}


def test_validation_images_are_as_they_are(as_default: Path) -> None:
    cfg = of_crops(batch_size=64, steps=4)
    _, val = loaders(image_sets(cfg), cfg, CPU)
    seen = torch.cat([images for images, _ in val]).flatten(1)
    stored = Crops(as_default, "val").images.flatten(1)
    assert len(seen) == TINY.val
    assert torch.equal(seen.unique(dim=0), stored.unique(dim=0))
    few, _ = next(iter(loaders(image_sets(cfg), of_crops(batch_size=64, steps=4), CPU)[1]))
    assert len(few) == 64


def test_a_training_image_is_moved_by_a_few_pixels_and_perhaps_mirrored(made: Path) -> None:
    crops = Crops(made, "train")
    batches = OnDevice([torch.arange(200)], crops, CPU, seed=0)
    (moved, labels) = next(iter(batches))
    assert moved.dtype == torch.uint8 and torch.equal(labels, crops.labels[:200])
    found = {"down": set(), "right": set(), "flip": set()}
    padded = torch.nn.functional.pad(crops.images[:200].float(), (4, 4, 4, 4), mode="reflect")
    for image, wide in zip(moved.float(), padded):
        (place,) = [
            (down - 4, right - 4, flip)
            for flip in (False, True)
            for down in range(9)
            for right in range(9)
            if torch.equal(
                image,
                (lambda x: x.flip(-1) if flip else x)(
                    wide[:, down : down + 32, right : right + 32]
                ),
            )
        ][:1]
        for name, value in zip(found, place):
            found[name].add(value)
    assert found["down"] == found["right"] == {*range(-4, 5)}
    assert found["flip"] == {False, True}


@pytest.mark.slow
def test_killed_maker_leaves_nothing_taken_for_whole(tmp_path: Path) -> None:
    root = tmp_path / "crops"
    maker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom pathlib import Path\n"
            "from course.data import crop_set\ncrop_set.ensure(Path(sys.argv[1]))",
            str(root),
        ],
        stderr=subprocess.PIPE,
    )
    while not root.with_name("crops.partial").exists():
        assert maker.poll() is None
        time.sleep(0.01)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    assert not is_whole(root)
    assert is_whole(ensure(root, TINY), TINY)


def test_damage_is_named_and_what_is_short_made_again(made: Path, tmp_path: Path) -> None:
    own = shutil.copytree(made, tmp_path / "own")
    images = own / "train.npy"
    content = bytearray(images.read_bytes())
    content[-1] ^= 255
    images.write_bytes(content)
    with pytest.raises(DataError, match="train.npy is damaged: delete the folder"):
        Crops(own, "train")
    images.write_bytes(content[:-5])
    assert not is_whole(own, TINY)
    assert Crops(ensure(own, TINY), "train").images.equal(Crops(made, "train").images)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds files that are not the crops"):
        ensure(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_they_lie_beside_the_default_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "images"))
    assert crop_set.default_root() == tmp_path / "images-crops"
    assert default_set.default_root() == tmp_path / "images"


def test_a_rung_takes_their_size() -> None:
    assert rung("dataloader", quick=True, data="crops").image_px == CROPS_PX
    assert rung("channels_last", data="crops").workers == 0
