"""Complete trainings: the rungs compute what the published recipes do, on all images."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from course import launch, launch_all, rung
from course.config import Config
from course.data.augment import random_erased
from course.data.images import MEAN, STD, epoch_px, open_image, train_view, val_view
from course.data.loader import ImageSets, repeated_sampler
from course.runs.run import Run
from course.training import meter, optimizers, precision
from course.training.recorder import Recorder

# torchvision's second recipe, github.com/pytorch/vision/issues/3995. Its averages change every 32
# steps; these change in each step, and as much in 32.
V2 = {
    "epochs": 600, "batch_size": 1024, "lr": 0.5, "lr_batch": 1024, "lr_warmup_epochs": 5,
    "schedule": "cosine", "weight_decay": 2e-5, "norm_decay": False, "label_smoothing": 0.1,
    "mix": "both", "mix_alpha": 0.2, "auto_augment": "ta_wide", "random_erasing": 0.1,
    "ra_reps": 4, "ema": 0.99997, "image_px": 176, "val_px": 224, "crop_pct": 224 / 232,
}  # fmt: skip
IMAGES = 13  # of each class, for training; no multiple of a batch


@pytest.fixture(scope="module")
def folder(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder like ImageNet, with 6 classes, 13 training and 3 validation images each."""
    root = tmp_path_factory.mktemp("imagenet")
    photographs = sorted((small_set / "train").glob("*/*.jpg"))
    for number in range(6):
        for split, count in (("train", IMAGES), ("val", 3)):
            (root / split / f"n{number}").mkdir(parents=True)
            for index in range(count):
                shutil.copy(photographs[number], root / split / f"n{number}" / f"{index}.JPEG")
    return root


def recorder(cfg: Config, images: int, val_images: int = 50) -> Recorder:
    run = Recorder(None)
    run.config = cfg
    run.complete_epochs(ImageSets(range(images), range(val_images), 10))
    return run


def rates(cfg: Config) -> list[float]:
    """Return the learning rate of each update."""
    optimizer = optimizers.create([torch.nn.Parameter(torch.zeros(1))], cfg)
    optimizers.schedule(optimizer, cfg)
    values = []
    for _ in range(cfg.epochs * cfg.steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    return values


@pytest.mark.parametrize("batch_size", [256, 1024])
def test_the_rate_of_each_epoch_is_torchvisions(batch_size: int) -> None:
    cfg = recorder(rung("imagenet", batch_size=batch_size), images=3 * batch_size + 1).config
    assert cfg.steps == 3
    weight = torch.nn.Parameter(torch.zeros(1))
    # The reference's defaults: --lr 0.1 for 8 × 32 images, --lr-step-size 30, --lr-gamma 0.1.
    reference = torch.optim.SGD([weight], 0.1 * batch_size / 256, 0.9, weight_decay=1e-4)
    scheduler = StepLR(reference, step_size=30, gamma=0.1)
    values = rates(cfg)
    for epoch in range(90):
        assert values[3 * epoch : 3 * epoch + 3] == [reference.param_groups[0]["lr"]] * 3
        reference.step()
        scheduler.step()
    own = optimizers.create([weight], cfg).param_groups[0]
    names = ("momentum", "weight_decay", "dampening", "nesterov")
    assert [own[name] for name in names] == [reference.param_groups[0][name] for name in names]


def test_the_fast_rate_rises_for_two_epochs_and_falls_to_zero() -> None:
    cfg = recorder(rung("imagenet_fast"), images=1024 * 10).config
    values = rates(cfg)
    assert max(values) == values[20] == pytest.approx(1.7 * 1024 / 4096)  # the end of epoch 2
    assert values[0] < 0.1 * values[20] and values[-1] < 0.01 * values[20]
    sizes = [epoch_px(cfg, epoch) for epoch in range(56)]
    # ffcv's get_resolution: interpolated from 41 to 48, and rounded to a multiple of 32.
    assert sizes == [160] * 45 + [192] * 11


@pytest.mark.parametrize("changes", [{}, V2])
def test_training_images_are_changed_in_torchvisions_order(folder: Path, changes: dict) -> None:
    image = open_image(str(folder / "train" / "n0" / "0.JPEG"))
    cfg = rung("imagenet", uint8=False, **changes)
    bilinear = v2.InterpolationMode.BILINEAR
    # references/classification/presets.py, ClassificationPresetTrain
    reference = v2.Compose(
        [
            v2.RandomResizedCrop(cfg.image_px, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            *([v2.TrivialAugmentWide(interpolation=bilinear)] if changes else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    for seed in range(4):
        torch.manual_seed(seed)
        own = train_view(cfg)(image)
        torch.manual_seed(seed)
        difference = (own - reference(image)).abs()
        # A crop that rounds differently by one level may be changed by more, as by contrast.
        assert difference.max() < 1.1 / 255 / min(STD) if not changes else difference.mean() < 0.05


def test_boxes_are_erased_with_the_mean_colour() -> None:
    random.seed(0)
    images = random_erased(torch.ones(400, 3, 32, 32), 0.25)
    erased = (images == 0).all(dim=1).float().mean(dim=(1, 2))  # the share of each image
    assert (erased > 0).float().mean() == pytest.approx(0.25, abs=0.08)
    assert erased[erased > 0].min() > 0.01 and erased.max() < 0.36  # torchvision: 0.02 to 0.33


def test_repeats_of_an_image_are_on_different_ranks() -> None:
    cfg = rung("imagenet", ra_reps=4)
    sets = ImageSets(range(100), range(4), 10)
    shares = [[*repeated_sampler(sets, cfg, rank, 4)] for rank in range(4)]
    assert shares[0] == shares[1] == shares[2] == shares[3]
    assert len(shares[0]) == len({*shares[0]}) == 25  # an epoch has 100 images, 25 of them unique


def test_validation_images_are_those_of_torchvisions_weights(folder: Path) -> None:
    image = open_image(str(folder / "val" / "n0" / "0.JPEG"))
    for weights, changes in (
        (ResNet50_Weights.IMAGENET1K_V1, {}),
        (ResNet50_Weights.IMAGENET1K_V2, V2),
    ):
        own = val_view(rung("imagenet", uint8=False, **changes))(image)
        reference = weights.transforms()(image)
        assert own.shape == reference.shape
        assert (own - reference).abs().max() < 1.1 / 255 / min(STD)


@pytest.mark.parametrize("drop_last, steps", [(True, 6), (False, 7)])
def test_a_complete_epoch_has_each_image_once(drop_last: bool, steps: int) -> None:
    changes = {"drop_last": drop_last, "save_every": 0, "async_save": False}
    cfg = rung("imagenet", batch_size=16, epochs=2, **changes)
    cfg = recorder(cfg, images=100, val_images=33).config
    assert (cfg.steps, cfg.val_steps) == (steps, 3)
    assert cfg.warmup_steps < 2 * steps  # or nothing would be measured


def test_too_few_images_for_an_epoch_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=256 is more than the 100 training images"):
        recorder(rung("imagenet"), images=100)
    with pytest.raises(ValueError, match=r"call run.complete_epochs\(sets\)"):
        run = Recorder(None)
        run.config = rung("imagenet")
        meter.Meter(run, torch.device("cpu"))


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("imagenet", {"data": "synthetic"}, "one batch is repeated without end. Set steps=1"),
        ("imagenet_fast", {"epochs": 16}, "start_ramp=41 is not before the end of epochs=16"),
        ("imagenet_fast", {"end_ramp": 40}, "choose an epoch before end_ramp=40"),
        ("imagenet_fast", {"start_px": 0}, "crops of one size have no ramp"),
        ("imagenet_fast", {"lr_warmup": 9}, "both are the length of one warm-up"),
        ("imagenet", {"schedule": "cosine", "lr_gamma": 0.2}, "only this schedule falls in steps"),
        ("imagenet", {"crop_pct": 1.5}, "crop_pct=1.5: it must be 0.1 or more, and below"),
        ("imagenet", {"val_steps": -2}, "val_steps=-2: it must be -1 or more"),
        (
            "imagenet",
            {"schedule": "find", "save_every": 0, "async_save": False},
            "Set steps=2 or more",
        ),
        ("imagenet_fast", {"auto_augment": "ta_wide"}, "workers do not decode the images"),
        ("imagenet", {"auto_augment": "ta_wide", "randaugment": "cpu"}, "a complete augmentation"),
        ("imagenet", {"format": "shards", "ra_reps": 2}, "shards have their own order"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        rung(name, **changes)
    assert message in str(error.value)


def test_all_cores_of_a_rank_load_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(precision, "core_count", lambda: 32)
    cfg = rung("imagenet", device="cpu")
    assert precision.resolve(cfg).workers == 7
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "24")  # in a job, cores are counted per task
    assert precision.resolve(cfg).workers == 23
    assert precision.resolve(rung("dataloader")).workers == 8


@pytest.mark.slow
@pytest.mark.parametrize("name, gpus", [("imagenet", 1), ("imagenet_fast", 2), ("V2", 2)])
def test_one_epoch_of_a_small_folder(folder: Path, runs_root: Path, name: str, gpus: int) -> None:
    changes = {"epochs": 1, "batch_size": 8, "device": "cpu", "image_px": 64}
    if name == "V2":
        name, changes = "imagenet", V2 | changes | {"lr_warmup_epochs": 0, "workers": 1}
    if name == "imagenet_fast":
        changes |= {"lr_warmup_epochs": 0, "start_ramp": 0, "end_ramp": 0, "start_px": 32}
        changes |= {"val_px": 96, "workers": 1}
    config = rung(name, data_root=str(folder), precision="fp32", **changes)
    run = launch("solutions/train.py", config, gpus=gpus)
    run.wait()
    assert run.status == "ok"
    assert len(run.steps) == 6 * IMAGES // 8 == run.config.steps == run.total_steps
    assert run.record.val_images == 18 and run.config.val_steps == 3
    assert 0 <= run.record.val_top1 <= run.record.val_top5 <= 1
    assert run.progress["step"] == run.progress["steps"]
    assert run.requested_config.steps == 0


def test_rows_of_a_long_run_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MAX_ROWS", 10)
    cfg = rung("baseline", data="synthetic", epochs=1, steps=95, warmup_steps=2, val_steps=0)
    (tmp_path / "config.json").write_text(cfg.to_json())
    (tmp_path / "launch.json").write_text("{}")
    run = Recorder(Run(tmp_path))
    timed = meter.Meter(run, torch.device("cpu"))
    for number in timed.steps(range(95), 0):
        for phase in meter.PHASES:
            timed.lap(phase, loss=torch.tensor(float(number)) if phase == "optimizer" else None)
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(0, 95, 10), 94]
    assert [row["loss"] for row in rows] == [row["step"] for row in rows]
    assert run.values["steps_measured"] == 93  # medians are of all steps


def test_complete_epochs_take_no_turns(folder: Path, runs_root: Path) -> None:
    configs = [rung("imagenet", data_root=str(folder), lr=lr) for lr in (0.1, 0.2)]
    with pytest.raises(ValueError, match="steps=0: runs that take turns need a number"):
        launch_all("solutions/train.py", configs, turns=True)
