"""The loader: ImageNet's layout, synthetic tensors, and messages that name the bad file."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from cases import for_all
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.data import DistributedSampler
from torchvision.transforms import v2

from course.config import Config, rung
from course.data import loader
from course.data.default_set import DataError
from course.data.images import MEAN, STD, RandomCrop, normalised, open_image, val_view
from course.data.loader import NICENESS, SYNTHETIC_CLASSES, Drawing, image_sets, loaders

CPU = torch.device("cpu")
CLASSES = {"n01440764": "cat", "n01443537": "coffee"}


@pytest.fixture
def imagenet(tiny_set: Path, tmp_path: Path) -> Path:
    """A folder as ImageNet has it: two classes, of 3 training and 4 validation images each."""
    root = tmp_path / "imagenet"
    for split, count in (("train", 3), ("val", 4)):
        for wnid, photograph in CLASSES.items():
            (root / split / wnid).mkdir(parents=True)
            source = tiny_set / "train" / photograph / f"{photograph}_00000.jpg"
            for index in range(count):
                shutil.copy(source, root / split / wnid / f"{wnid}_{index}.JPEG")
    return root


def config(root: Path, **changes) -> Config:
    files = {
        "data": "imagenet",
        "data_root": str(root),
        "batch_size": 4,
        "image_px": 32,
        "warmup_steps": 0,
    }
    return rung("baseline", quick=True, **{**files, **changes})


def opened(cfg: Config) -> tuple:
    """Training batches, validation batches and the number of classes, as the script has them."""
    sets = image_sets(cfg)
    return (*loaders(sets, cfg, CPU), sets.classes)


def read_all(cfg: Config, split: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(cfg.seed)  # as the training script does: the crops are drawn from it
    return list(opened(cfg)[split])


def refusal(cfg: Config) -> str:
    """What the DataError says that comes while loading a whole epoch."""
    with pytest.raises(DataError) as caught:
        read_all(cfg)
    return str(caught.value)


def test_imagenet_folder_gives_batches(imagenet: Path) -> None:
    train, val, classes = opened(config(imagenet, steps=3))
    assert (classes, len(train), len(val)) == (2, 3, 2)
    for images, labels in (*train, *val):
        assert (images.shape, images.dtype) == ((4, 3, 32, 32), torch.uint8)
        assert (labels.shape, labels.dtype) == ((4,), torch.int64)
        assert set(labels.tolist()) <= {0, 1}


def test_labels_follow_the_sorted_class_names(imagenet: Path) -> None:
    for path in (imagenet / "val" / "n01443537").iterdir():
        Image.new("RGB", (48, 48), "white").save(path)
    for images, labels in opened(config(imagenet))[1]:
        is_white = images.amin(dim=(1, 2, 3)) == 255
        assert torch.equal(is_white.long(), labels)


def test_home_folder_in_data_root(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(imagenet.parent))
    assert opened(config(Path("~/imagenet")))[2] == 2


def test_last_validation_batch_is_kept(imagenet: Path) -> None:
    sizes = [len(labels) for _, labels in read_all(config(imagenet, batch_size=3), split=1)]
    assert sizes == [3, 3, 2]


def test_validation_batches_mix_classes(imagenet: Path) -> None:
    first = read_all(config(imagenet), split=1)[0]
    assert set(first[1].tolist()) == {0, 1}


@pytest.mark.parametrize("split", (0, 1), ids=("train", "val"))
def test_same_seed_gives_the_same_batches(tiny_set: Path, split: int) -> None:
    one, two = (read_all(config(tiny_set), split) for _ in range(2))
    assert len(one) == len(two) > 1
    for (images, labels), (same_images, same_labels) in zip(one, two):
        assert torch.equal(images, same_images) and torch.equal(labels, same_labels)


@pytest.mark.parametrize("split", (0, 1), ids=("train", "val"))
def test_another_seed_gives_another_order(tiny_set: Path, split: int) -> None:
    orders = [
        torch.cat([labels for _, labels in read_all(config(tiny_set, seed=seed), split)])
        for seed in (0, 1)
    ]
    assert not torch.equal(*orders)


def test_order_of_files_depends_on_no_other_random_numbers(tiny_set: Path) -> None:
    orders = []
    for drawn_before in (1, 2):
        torch.manual_seed(drawn_before)
        orders.append([labels.tolist() for _, labels in opened(config(tiny_set))[0]])
    assert orders[0] == orders[1]


def test_next_epoch_has_another_order(tiny_set: Path) -> None:
    train, _, _ = opened(config(tiny_set, batch_size=32, steps=1))
    (_, first), (_, second) = next(iter(train)), next(iter(train))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


class TestEpochs:
    """As many batches as the config says, from however many files."""

    @for_all("files, steps", [(32, 3), (32, 4), (32, 5), (32, 21)])
    def test_has_all_its_steps(self, tiny_set: Path, files: int, steps: int) -> None:
        train, _, _ = opened(config(tiny_set, batch_size=8, steps=steps))
        assert len(train) == steps
        epochs = [list(train.sampler) for _ in range(2)]
        for order in epochs:
            assert len(order) == 8 * steps
            passes = [order[at : at + files] for at in range(0, len(order), files)]
            assert all(len({*each}) == len(each) for each in passes)  # all, before one comes again
            assert len({tuple(each) for each in passes}) == len(passes)  # each shuffled anew
        assert epochs[0] != epochs[1]

    @for_all("world", [1, 2, 4])
    def test_ranks_share_each_pass(self, world: int) -> None:
        files, share, epochs = range(32), 10, 3
        samplers = [DistributedSampler(files, world, rank, seed=7) for rank in range(world)]
        drawings = [Drawing(each, 6 * share, epochs) for each in samplers]
        orders = []
        for epoch in range(epochs):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            taken = [list(each) for each in drawings]
            in_a_pass = 32 // world
            for at in range(0, 6 * share - in_a_pass + 1, in_a_pass):
                together = [image for each in taken for image in each[at : at + in_a_pass]]
                assert sorted(together) == [*files]
                orders.append(tuple(together))
            assert {sampler.epoch for sampler in samplers} == {epoch}  # as the script has set it
        assert len({*orders}) == len(orders)  # no pass of any epoch is like another

    def test_only_what_fills_the_last_share_is_repeated(self) -> None:
        drawings = [Drawing(DistributedSampler(range(10), 4, rank), 3) for rank in range(4)]
        taken = [image for each in drawings for image in each]
        assert sorted({*taken}) == [*range(10)] and len(taken) == 12

    def test_workers_that_stay_see_the_same_images(self, tiny_set: Path) -> None:
        orders = []
        for stay in (False, True):
            cfg = config(tiny_set, batch_size=8, steps=2)
            train, _ = loaders(image_sets(cfg), cfg, CPU, num_workers=1, persistent_workers=stay)
            orders.append([labels.tolist() for _ in range(2) for _, labels in train])
        assert orders[0] == orders[1]

    def test_a_script_that_forgets_the_epoch_repeats_it(self) -> None:
        drawing = Drawing(DistributedSampler(range(32), 2, 0), 40, 2)
        assert list(drawing) == list(drawing)
        assert drawing.taken[0] == drawing.taken[1]

    def test_ends_with_the_files_if_the_last_batch_is_kept(self, tiny_set: Path) -> None:
        train, _, _ = opened(config(tiny_set, batch_size=12, steps=9, drop_last=False))
        assert [len(labels) for _, labels in train] == [12, 12, 8]

    def test_what_was_taken_is_that_of_the_first_pass(self) -> None:
        drawing = Drawing(DistributedSampler(range(100), 2, 1, shuffle=False), 80, 1)
        assert len(list(drawing)) == 80
        assert drawing.taken == [[*range(1, 100, 2)]] and drawing.low == [[*range(1, 64, 2)]]

    def test_without_images_it_ends(self) -> None:
        assert list(Drawing(range(0), 5)) == []


@pytest.mark.parametrize("uint8", [True, False])
def test_pixels_are_normalised(uint8: bool) -> None:
    cfg = rung("baseline", image_px=32, uint8=uint8)
    colour = torch.tensor([255, 0, 51], dtype=torch.uint8).view(3, 1, 1)
    batch = val_view(cfg)(colour.expand(3, 50, 60))[None]
    assert batch.dtype == (torch.uint8 if uint8 else torch.float32)
    expected = [(value - mean) / std for value, mean, std in zip((1, 0, 0.2), MEAN, STD)]
    torch.testing.assert_close(normalised(batch)[0, :, 16, 16], torch.tensor(expected))


def test_bytes_keep_their_layout_when_they_are_normalised() -> None:
    images = torch.zeros((2, 3, 8, 8), dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert normalised(images).is_contiguous(memory_format=torch.channels_last)
    floats = torch.zeros(2, 3, 8, 8)
    assert normalised(floats) is floats


def test_constants_of_a_pretended_device_are_not_kept() -> None:
    with FakeTensorMode():
        assert isinstance(normalised(torch.zeros((1, 3, 4, 4), dtype=torch.uint8)), FakeTensor)
    real = normalised(torch.zeros((1, 3, 4, 4), dtype=torch.uint8))
    assert float(real[0, 0, 0, 0]) == pytest.approx(-MEAN[0] / STD[0])


def test_loading_takes_one_thread(tiny_set: Path) -> None:
    seen, before = [], torch.get_num_threads()
    sets = image_sets(config(tiny_set))
    sets.train.loader = lambda path: seen.append(torch.get_num_threads()) or open_image(path)
    torch.set_num_threads(2)
    try:
        next(iter(loaders(sets, config(tiny_set), CPU)[0]))
        assert {*seen} == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_workers_make_way_for_the_training_process(tiny_set: Path) -> None:
    sets, before = image_sets(config(tiny_set)), os.nice(0)
    sets.train.loader = lambda path: open_image(path) * 0 + os.nice(0)
    sets.train.transform = lambda image: image[:, :4, :4].float()
    lowest = 19
    for workers, own in ((1, min(before + NICENESS, lowest)), (0, before)):
        batches, _ = loaders(sets, config(tiny_set), CPU, num_workers=workers)
        assert {*next(iter(batches))[0].flatten().tolist()} == {own}
    assert os.nice(0) == before


@pytest.mark.parametrize("mode", ("L", "CMYK"))  # ImageNet has both
def test_grey_and_cmyk_images_become_rgb(tmp_path: Path, mode: str) -> None:
    odd = Image.effect_noise((20, 10), 90).convert(mode)
    odd.save(path := tmp_path / "odd.JPEG", quality=100)
    with Image.open(path) as image:
        expected = v2.functional.pil_to_tensor(image.convert("RGB"))
    assert torch.equal(open_image(str(path)), expected)


@pytest.mark.parametrize("name", ["odd.png", "odd.bmp", "odd.webp"])  # that ImageFolder takes
def test_other_formats_are_read(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (20, 10), (255, 0, 0)).save(path := tmp_path / name, lossless=True)
    assert open_image(str(path))[:, 5, 5].tolist() == [255, 0, 0]


def test_decoded_as_pillow_decodes_but_for_the_colours_between_pixels(tiny_set: Path) -> None:
    for path in [*tiny_set.glob("train/*/*.jpg")][:4]:
        with Image.open(path) as image:
            expected = v2.functional.pil_to_tensor(image.convert("RGB"))
            grey = v2.functional.pil_to_tensor(image.convert("L"))
        found = open_image(str(path))
        assert (found.float() - expected).abs().mean() < 2
        assert (v2.functional.rgb_to_grayscale(found).float() - grey).abs().mean() < 1


def test_crops_are_those_of_torchvision(tiny_set: Path) -> None:
    image = open_image(str(next(tiny_set.glob("train/*/*.jpg"))))
    for seed in range(5):
        torch.manual_seed(seed)
        made = RandomCrop(48)(image)
        torch.manual_seed(seed)
        expected = v2.RandomResizedCrop(48)(image)
        assert (made.float() - expected).abs().max() <= 1


def test_missing_root_names_the_folder(tmp_path: Path) -> None:
    said = refusal(config(tmp_path / "nowhere"))
    assert f"no folder {tmp_path / 'nowhere' / 'train'}" in said
    assert "data_root must hold train/ and val/" in said


def test_missing_split_names_the_folder(imagenet: Path) -> None:
    shutil.rmtree(imagenet / "val")
    assert f"no folder {imagenet / 'val'}" in refusal(config(imagenet))


@pytest.mark.parametrize("split", ("train", "val"))
def test_class_without_images_is_named(imagenet: Path, split: str) -> None:
    for path in (imagenet / split / "n01443537").iterdir():
        path.unlink()
    said = refusal(config(imagenet))
    assert f"{imagenet / split} is incomplete" in said and "n01443537" in said


def test_split_without_classes_is_named(imagenet: Path) -> None:
    shutil.rmtree(imagenet / "train")
    (imagenet / "train").mkdir()
    assert f"{imagenet / 'train'} is incomplete" in refusal(config(imagenet))


def test_classes_that_differ_are_named(imagenet: Path) -> None:
    (imagenet / "val" / "n01443537").rename(imagenet / "val" / "n09999999")
    said = refusal(config(imagenet))
    assert str(imagenet) in said and "['n01443537', 'n09999999']" in said


@pytest.mark.parametrize("workers", (0, 2))
def test_truncated_jpeg_is_named(imagenet: Path, workers: int) -> None:
    for path in (imagenet / "train" / "n01440764").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = refusal(config(imagenet, workers=workers))
    assert str(imagenet / "train" / "n01440764") in said and "cannot be decoded" in said


def test_text_named_jpg_is_named(imagenet: Path) -> None:
    bad = imagenet / "train" / "n01440764" / "notes.jpg"
    bad.write_text("not a picture")
    assert f"{bad} cannot be decoded" in refusal(config(imagenet, batch_size=7))


def test_png_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(DataError, match="cut.png cannot be decoded"):
        open_image(str(path))


def test_batch_larger_than_the_set(imagenet: Path) -> None:
    said = refusal(config(imagenet, batch_size=7))
    assert f"batch_size=7 is more than the 6 training images in {imagenet}" in said


def test_two_ranks_batch_may_be_larger_than_the_set(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_ranks", lambda: 2)
    cfg = config(imagenet, batch_size=8, steps=2)
    sets = image_sets(cfg)
    ranks = [DistributedSampler(sets.train, 2, rank) for rank in (0, 1)]
    taken = [loaders(sets, cfg, CPU, 4, sampler=each)[0].sampler for each in ranks]
    first, other = ([*each] for each in taken)
    assert len(first) == len(other) == 8  # a share of three, again and again
    assert sorted(first[:3] + other[:3]) == sorted(first[3:6] + other[3:6]) == [*range(6)]
    assert "batch_size=13 is more than" in refusal(config(imagenet, batch_size=13))
    short = config(imagenet, batch_size=8, drop_last=False, warmup_steps=0)
    assert "batch_size=8 is more than the 6" in refusal(short)  # batches of 3 would count as 4


def test_default_set_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "file" / "set"))
    with pytest.raises(DataError, match="set COURSE_DATA"):
        image_sets(rung("baseline", quick=True))


def test_synthetic_batches() -> None:
    cfg = rung("baseline", quick=True, data="synthetic", batch_size=3, image_px=32, val_steps=9)
    train, val, classes = opened(cfg)
    batches = list(train)
    assert len(batches) == len(train) == max(cfg.steps, cfg.val_steps) == len(list(val))
    assert classes == SYNTHETIC_CLASSES
    images, labels = batches[0]
    assert (images.shape, images.dtype) == ((3, 3, 32, 32), torch.float32)
    assert (labels.shape, labels.dtype) == ((3,), torch.int64)
    assert labels.min() >= 0 and labels.max() < classes
    assert all(batch is images for batch, _ in batches)  # nothing is made while it is timed


def test_synthetic_batches_follow_the_seed() -> None:
    small = {"data": "synthetic", "batch_size": 2, "image_px": 32}
    configs = [rung("baseline", quick=True, seed=seed, **small) for seed in (0, 0, 1)]
    one, same, other = (next(iter(opened(cfg)[0])) for cfg in configs)
    assert torch.equal(one[0], same[0]) and torch.equal(one[1], same[1])
    assert not torch.equal(one[0], other[0])


def test_a_set_too_small_to_measure_after_warm_up_is_refused(tiny_set: Path) -> None:
    small = {"data": "imagenet", "data_root": str(tiny_set), "batch_size": 16, "warmup_steps": 4}
    with pytest.raises(DataError, match="leaves none to measure"):
        image_sets(Config(**small, drop_last=False))
    image_sets(Config(**small))  # it goes on drawing
