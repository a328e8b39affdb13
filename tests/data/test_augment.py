"""RandAugment for a batch, and crops that grow."""

from pathlib import Path

import pytest
import torch
from cases import for_all
from torchvision.transforms import v2

from course.config import Config, rung
from course.data import augment
from course.data.images import epoch_px, train_view
from course.data.loader import image_sets, loaders

PHOTOGRAPH = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8)
CPU = torch.device("cpu")
# As v2.RandAugment calls them; the names of our own are shorter.
NAMED = {"color": "Color", "autocontrast": "AutoContrast"}


@for_all("name, strength", augment.KINDS)
def test_a_change_is_that_of_torchvision(name: str, strength: float) -> None:
    theirs = v2.RandAugment()
    known = NAMED.get(name, name.title().replace(" ", ""))
    magnitudes, signed = theirs._AUGMENTATION_SPACE[known]
    found = magnitudes(theirs.num_magnitude_bins, 64, 96)
    magnitude = 0.0 if found is None else float(found[theirs.magnitude])
    magnitude *= -1 if signed and strength < 0 else 1
    due = theirs._apply_image_or_video_transform(
        PHOTOGRAPH, known, magnitude, theirs.interpolation, theirs._fill
    )
    ours = augment.OPERATIONS[name](PHOTOGRAPH, strength)
    assert ours.dtype == torch.uint8
    assert int((ours.int() - due.int()).abs().max()) <= 1  # strengths differ in the eighth digit


def test_as_many_and_as_often_as_torchvision_draws() -> None:
    theirs = v2.RandAugment()
    signed = {name: each[1] for name, each in theirs._AUGMENTATION_SPACE.items()}
    assert len(augment.OPERATIONS) == len(signed) and theirs.num_ops == augment.DRAWS
    assert len(augment.KINDS) == len(signed) + sum(signed.values())
    counts = augment.KIND_OF.bincount().tolist()
    for (name, _), count in zip(augment.KINDS, counts):
        assert count == (2 if name in augment.SAME_EITHER_WAY else 1)


def test_each_image_draws_for_itself_and_stays_in_its_place() -> None:
    torch.manual_seed(0)
    batch = PHOTOGRAPH.expand(64, -1, -1, -1).clone()
    changed = augment.randaugmented(batch)
    assert changed.shape == batch.shape and changed.dtype == torch.uint8
    assert len({each.numpy().tobytes() for each in changed}) > 30
    torch.manual_seed(0)  # the same draws for others show that no image changed its place
    black = batch.clone()
    black[:32] = 0
    again = augment.randaugmented(black)
    assert torch.equal(again[32:], changed[32:])


def test_the_trap_of_a_batch() -> None:
    torch.manual_seed(0)
    batch = PHOTOGRAPH.expand(16, -1, -1, -1)
    assert len({each.numpy().tobytes() for each in v2.RandAugment()(batch)}) == 1


def test_workers_draw_where_the_config_says_so() -> None:
    named = [type(each).__name__ for each in train_view(rung("randaugment")).transforms]
    assert "RandAugment" in named
    for name in ("dataloader", "randaugment_device"):
        named = [type(each).__name__ for each in train_view(rung(name)).transforms]
        assert "RandAugment" not in named


@for_all(
    "start, end, epochs, due",
    [
        (128, 224, 4, [128, 160, 192, 224]),
        (64, 128, 5, [64, 96, 96, 128, 128]),
        (64, 160, 2, [64, 160]),
        (128, 224, 1, [224]),
        (0, 224, 3, [224, 224, 224]),
        (32, 48, 3, [32, 32, 48]),
    ],
)
def test_sizes_of_the_epochs(start: int, end: int, epochs: int, due: list[int]) -> None:
    cfg = Config(start_px=start, image_px=end, epochs=epochs)
    assert [epoch_px(cfg, epoch) for epoch in range(epochs)] == due


@pytest.mark.slow
@for_all(
    "loading",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=["alone", "workers", "workers that stay"],
)
def test_crops_grow_in_workers_too(tiny_set: Path, loading: dict) -> None:
    cfg = Config(
        data="imagenet",
        data_root=str(tiny_set),
        start_px=32,
        image_px=96,
        epochs=3,
        steps=3,
        batch_size=4,
        warmup_steps=0,
    )
    train, val = loaders(image_sets(cfg), cfg, CPU, **loading)
    sizes = [{tuple(images.shape[2:]) for images, _ in train} for _ in range(cfg.epochs)]
    assert sizes == [{(32, 32)}, {(64, 64)}, {(96, 96)}]
    assert next(iter(val))[0].shape[2:] == (96, 96)
