"""The loader: ImageNet's layout, synthetic tensors, and messages that name the bad file."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DistributedSampler
from torchvision.transforms import v2

from course.config import Config, rung
from course.data.folders import DataError
from course.data.images import MEAN, STD, RandomCrop, normalised, open_image, val_view
from course.data.loader import EpochSampler, image_sets, loaders

CPU = torch.device("cpu")
CLASSES = {"n01440764": "cat", "n01443537": "coffee"}


@pytest.fixture
def imagenet(tiny_set: Path, tmp_path: Path) -> Path:
    """Create a folder like ImageNet: two classes, with 3 training and 4 validation images each."""
    root = tmp_path / "imagenet"
    for split, count in (("train", 3), ("val", 4)):
        for wnid, photograph in CLASSES.items():
            (root / split / wnid).mkdir(parents=True)
            source = tiny_set / "train" / photograph / f"{photograph}_00000.jpg"
            for index in range(count):
                shutil.copy(source, root / split / wnid / f"{wnid}_{index}.JPEG")
    return root


def config(root: Path, **changes) -> Config:
    fields = {"batch_size": 4, "image_px": 32, "warmup_steps": 0, **changes}
    return rung("baseline", quick=True, data="imagenet", data_root=str(root), **fields)


def create(cfg: Config, **loading) -> tuple:
    """Return training batches and validation batches."""
    return loaders(image_sets(cfg), cfg, CPU, **loading)


def read_all(cfg: Config, split: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(cfg.seed)  # as training scripts do; crops are drawn from it
    return list(create(cfg)[split])


def refusal(cfg: Config) -> str:
    """Return the message of the DataError from loading an epoch."""
    with pytest.raises(DataError) as error:
        read_all(cfg)
    return str(error.value)


def test_imagenet_folder_gives_batches(imagenet: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(imagenet.parent))
    cfg = config(Path("~/imagenet"), steps=3)
    train, val = create(cfg)
    assert (image_sets(cfg).classes, len(train), len(val)) == (2, 3, 2)
    for images, labels in (*train, *val):
        assert (images.shape, images.dtype) == ((4, 3, 32, 32), torch.uint8)
        assert (labels.shape, labels.dtype) == ((4,), torch.int64)
        assert set(labels.tolist()) <= {0, 1}
    assert set(next(iter(val))[1].tolist()) == {0, 1}  # classes are mixed
    sizes = [len(labels) for _, labels in read_all(config(imagenet, batch_size=3), split=1)]
    assert sizes == [3, 3, 2]  # the last validation batch is not dropped


def test_labels_follow_the_sorted_class_names(imagenet: Path) -> None:
    for path in (imagenet / "val" / "n01443537").iterdir():
        Image.new("RGB", (48, 48), "white").save(path)
    for images, labels in create(config(imagenet))[1]:
        is_white = images.amin(dim=(1, 2, 3)) == 255
        assert torch.equal(is_white.long(), labels)


@pytest.mark.parametrize("split", (0, 1), ids=("train", "val"))
def test_batches_depend_on_the_seed(tiny_set: Path, split: int) -> None:
    one, two = (read_all(config(tiny_set), split) for _ in range(2))
    assert len(one) == len(two) > 1
    for (images, labels), (same_images, same_labels) in zip(one, two):
        assert torch.equal(images, same_images) and torch.equal(labels, same_labels)
    other = read_all(config(tiny_set, seed=1), split)
    assert [labels.tolist() for _, labels in one] != [labels.tolist() for _, labels in other]


class TestEpochs:
    """Epochs with any number of batches, from any number of files."""

    @pytest.mark.parametrize("files, steps", [(32, 3), (32, 4), (32, 5), (32, 21)])
    def test_has_all_its_steps(self, tiny_set: Path, files: int, steps: int) -> None:
        train, _ = create(config(tiny_set, batch_size=8, steps=steps))
        assert len(train) == steps
        epochs = [list(train.sampler) for _ in range(2)]
        for order in epochs:
            assert len(order) == 8 * steps
            passes = [tuple(order[at : at + files]) for at in range(0, len(order), files)]
            assert all(len({*images}) == len(images) for images in passes)  # no repetition
            assert len({*passes}) == len(passes)  # shuffled again
        assert epochs[0] != epochs[1]

    @pytest.mark.parametrize("ranks", [1, 2, 4])
    def test_ranks_share_each_pass(self, ranks: int) -> None:
        share, epochs, orders = 10, 3, []
        samplers = [DistributedSampler(range(32), ranks, rank, seed=7) for rank in range(ranks)]
        epoch_samplers = [EpochSampler(sampler, 6 * share, epochs) for sampler in samplers]
        for epoch in range(epochs):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            images, in_a_pass = [list(sampler) for sampler in epoch_samplers], 32 // ranks
            for at in range(0, 6 * share - in_a_pass + 1, in_a_pass):
                together = [image for rank in images for image in rank[at : at + in_a_pass]]
                assert sorted(together) == [*range(32)]
                orders.append(tuple(together))
            assert {sampler.epoch for sampler in samplers} == {epoch}  # as the script has set it
        assert len({*orders}) == len(orders)


@pytest.mark.parametrize("uint8", [True, False])
def test_pixels_are_normalised(uint8: bool) -> None:
    cfg = rung("baseline", image_px=32, uint8=uint8)
    colour = torch.tensor([255, 0, 51], dtype=torch.uint8).view(3, 1, 1)
    batch = val_view(cfg)(colour.expand(3, 50, 60))[None]
    assert batch.dtype == (torch.uint8 if uint8 else torch.float32)
    expected = [(value - mean) / std for value, mean, std in zip((1, 0, 0.2), MEAN, STD)]
    torch.testing.assert_close(normalised(batch)[0, :, 16, 16], torch.tensor(expected))
    images = torch.zeros((2, 3, 8, 8), dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert normalised(images).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("mode", ("L", "CMYK"))  # ImageNet has both
def test_grey_and_cmyk_images_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "odd.JPEG"
    Image.effect_noise((20, 10), 90).convert(mode).save(path, quality=100)
    with Image.open(path) as image:
        expected = v2.functional.pil_to_tensor(image.convert("RGB"))
    assert torch.equal(open_image(str(path)), expected)


def test_images_and_crops_equal_pillows_and_torchvisions(tiny_set: Path) -> None:
    for path in [*tiny_set.glob("train/*/*.jpg")][:4]:
        with Image.open(path) as image:
            expected = v2.functional.pil_to_tensor(image.convert("RGB"))
            grey = v2.functional.pil_to_tensor(image.convert("L"))
        result = open_image(str(path))
        assert (result.float() - expected).abs().mean() < 2  # colours are enlarged differently
        assert (v2.functional.rgb_to_grayscale(result).float() - grey).abs().mean() < 1
        torch.manual_seed(0)
        crop = RandomCrop(48)(result)
        torch.manual_seed(0)
        assert (crop.float() - v2.RandomResizedCrop(48)(result)).abs().max() <= 1


def test_incomplete_folders_are_named(imagenet: Path, tmp_path: Path) -> None:
    message = refusal(config(tmp_path / "nowhere"))
    assert f"no folder {tmp_path / 'nowhere' / 'train'}: data_root must contain train/" in message
    for path in (imagenet / "val" / "n01443537").iterdir():
        path.unlink()
    message = refusal(config(imagenet))
    assert f"{imagenet / 'val'} is incomplete" in message and "n01443537" in message
    (imagenet / "val" / "n01443537").rmdir()
    shutil.copytree(imagenet / "val" / "n01440764", imagenet / "val" / "n09999999")
    message = refusal(config(imagenet))
    assert str(imagenet) in message and "['n01443537', 'n09999999']" in message


@pytest.mark.parametrize("workers", (0, 2))
def test_a_truncated_image_is_named(imagenet: Path, workers: int) -> None:
    for path in (imagenet / "train" / "n01440764").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = refusal(config(imagenet, workers=workers))
    assert str(imagenet / "train" / "n01440764") in message and "cannot be decoded" in message


def test_too_few_images_are_refused(imagenet: Path, tiny_set: Path) -> None:
    message = refusal(config(imagenet, batch_size=7))
    assert f"batch_size=7 is more than the 6 training images in {imagenet}" in message
    with pytest.raises(DataError, match="leaves none to measure"):
        image_sets(config(tiny_set, batch_size=16, warmup_steps=4, drop_last=False))
    image_sets(config(tiny_set, batch_size=16, warmup_steps=4))
