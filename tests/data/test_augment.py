"""RandAugment for a batch, and training crops that grow."""

from pathlib import Path

import pytest
import torch
from torchvision.transforms import v2

from course.config import Config
from course.data import augment
from course.data.images import epoch_px
from course.data.loader import image_sets, loaders

PHOTOGRAPH = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
TORCHVISION_NAMES = {"color": "Color", "autocontrast": "AutoContrast"}


@pytest.mark.parametrize("name, strength", augment.KINDS)
def test_a_change_equals_torchvisions(name: str, strength: float) -> None:
    transform = v2.RandAugment()
    their_name = TORCHVISION_NAMES.get(name, name.title().replace(" ", ""))
    magnitudes, is_signed = transform._AUGMENTATION_SPACE[their_name]
    values = magnitudes(transform.num_magnitude_bins, 64, 96)
    magnitude = 0.0 if values is None else float(values[transform.magnitude])
    magnitude *= -1 if is_signed and strength < 0 else 1
    expected = transform._apply_image_or_video_transform(
        PHOTOGRAPH, their_name, magnitude, transform.interpolation, transform._fill
    )
    result = augment.OPERATIONS[name](PHOTOGRAPH, strength)
    assert result.dtype == torch.uint8
    assert int((result.int() - expected.int()).abs().max()) <= 1


def test_each_image_is_changed_separately_and_keeps_its_place() -> None:
    batch = PHOTOGRAPH.expand(64, -1, -1, -1).clone()
    torch.manual_seed(0)
    results = augment.randaugmented(batch)
    assert results.shape == batch.shape and results.dtype == torch.uint8
    assert len({image.numpy().tobytes() for image in results}) > 30
    batch[:32] = 0
    torch.manual_seed(0)
    assert torch.equal(augment.randaugmented(batch)[32:], results[32:])


@pytest.mark.parametrize(
    "start, end, epochs, sizes",
    [
        (128, 224, 4, [128, 160, 192, 224]),
        (64, 128, 5, [64, 96, 96, 128, 128]),
        (128, 224, 1, [224]),
        (0, 224, 3, [224, 224, 224]),
        (32, 48, 3, [32, 32, 48]),
    ],
)
def test_sizes_of_the_epochs(start: int, end: int, epochs: int, sizes: list[int]) -> None:
    cfg = Config(start_px=start, image_px=end, epochs=epochs)
    assert [epoch_px(cfg, epoch) for epoch in range(epochs)] == sizes


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["files", "gpu_decode"])
def test_crops_grow_in_workers_too(tiny_set: Path, stored: str) -> None:
    sizes = {"start_px": 32, "image_px": 96, "epochs": 3, "steps": 3, "batch_size": 4}
    sizes |= {"format": stored, "val_px": 128}
    cfg = Config(data="imagenet", data_root=str(tiny_set), warmup_steps=0, **sizes)
    train, val = loaders(
        image_sets(cfg), cfg, torch.device("cpu"), num_workers=2, persistent_workers=True
    )
    shapes = [{tuple(images.shape[2:]) for images, _ in train} for _ in range(cfg.epochs)]
    assert shapes == [{(32, 32)}, {(64, 64)}, {(96, 96)}]
    assert next(iter(val))[0].shape[2:] == (128, 128)
