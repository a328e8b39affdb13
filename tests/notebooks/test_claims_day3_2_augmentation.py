"""Lab 3.2 says what the records say."""

import math
import tomllib
from collections.abc import Callable
from functools import cache

import pandas as pd
import torch
from cases import for_all
from claims import text_of, text_of_quiz

from course.config import LADDER, rung
from course.data import augment, default_set
from course.data.images import epoch_px
from course.days import day3
from course.days.learning import SEEDS
from course.labs.quizzes import find
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import augmentation
from course.topics.loading import feeding

TEXT, QUIZ = text_of("day3_2_augmentation"), text_of_quiz("day3_2")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 3.2")[1].split())
CORES = 16


def said(words: str) -> None:
    assert words in TEXT


def said_behind(words: str) -> None:
    assert words in BEHIND


@cache
def recorded(name: str) -> Run:
    """A run of the H200 that was recorded for augmentation."""
    runs = recordings.recorded_runs("nvidia-h200", "augmentation")
    (run,) = (run for run in runs if run.config.rung == name)
    return run


@cache
def trial(name: str) -> pd.Series:
    return feeding.trials([recorded(name)]).iloc[0]


def speed(name: str) -> int:
    return round(trial(name).images_per_s)


def added_ms(name: str, plain: str = "dataloader-raw") -> float:
    """By so much a step is longer than without augmentation."""
    return trial(name).step_ms - trial(plain).step_ms


@cache
def ends() -> pd.DataFrame:
    """What each way and seed learned, in its last epoch."""
    runs = [recorded(f"{way}-seed-{seed}") for way in day3.BRINGS for seed in SEEDS]
    return augmentation.brought(runs).query("epoch == 20")


def top1(how: str) -> pd.Series:
    """Accuracy in validation of each way at the end, over its seeds."""
    return ends().groupby("way")["val_top1"].agg(how)


def first_steps(run: Run) -> pd.Series:
    return run.steps["step"] % run.config.steps == 0


def test_randaugment_is_what_it_says() -> None:
    said("takes two of 14 operations for each image")
    said("All have the same strength, 9 of 30.")
    assert augment.DRAWS == 2 and len(augment.OPERATIONS) == 14
    assert math.isclose(augment.STRENGTH, 9 / 30)
    said_behind("There are 23 kinds of change: 14 operations, nine of which have two signs.")
    assert len(augment.KINDS) == 23 and 14 - len(augment.SAME_EITHER_WAY) == 9


def test_hundreds_of_operators_for_a_batch() -> None:
    said("How many of PyTorch's operators does it call for 256 images?")
    said("There are hundreds: each kind of change takes several")
    said_behind("nearly always all 23 occur. Together they are 744 of PyTorch's operators.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randint(0, 256, (256, 3, 64, 64), dtype=torch.uint8)
        assert augmentation.operator_calls(lambda: augment.randaugmented(images)) == 744
    missing = len(augment.KINDS) * (1 - 1 / len(augment.DRAWN)) ** 256
    assert missing < 0.01


def test_each_rung_changes_one_field() -> None:
    said('With `randaugment="cpu"` the workers call')
    said("crops begin small and grow epoch by epoch")
    plain = vars(LADDER["dataloader"])
    for name, field in {
        "randaugment": "randaugment",
        "randaugment_device": "randaugment",
        "mixup": "mix",
        "cutmix": "mix",
        "label_smoothing": "label_smoothing",
        "progressive": "start_px",
    }.items():
        changed = vars(rung(name))
        assert {key for key in changed if changed[key] != plain[key]} == {"rung", field}
    said("With α = 1, the lab's value")
    assert plain["mix_alpha"] == 1


def test_label_smoothing() -> None:
    said("0.9 of a label is its class, and 0.1 is spread evenly. With 16 classes:")
    assert rung("label_smoothing").label_smoothing == 0.1
    assert len(default_set.PHOTOGRAPHS) == 16
    mine = 0.9 * torch.eye(16)[:1] + 0.1 / 16
    scores, number = torch.arange(16.0)[None], torch.tensor([0])
    smoothed = torch.nn.functional.cross_entropy(scores, number, label_smoothing=0.1)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(scores, mine), smoothed)


def test_how_the_h200_was_recorded() -> None:
    said("An H200 was recorded with 16 workers on 16 cores, in bf16 with channels last.")
    said("Images come as JPEG files, or as raw bytes")
    for stored, names in (
        ("files", day3.ON_HOST),
        ("raw", (*day3.ON_HOST, *day3.ON_DEVICE)),
    ):
        for name in names:
            run = recorded(f"{name}-{stored}")
            assert (run.config.precision, run.config.channels_last) == ("bf16", True)
            assert (run.config.workers, run.record.hardware["cores"]) == (16, CORES)
            assert run.config.format == stored
            made_ahead = run.config.workers * run.config.prefetch_factor
            assert made_ahead == 32 and run.config.warmup_steps == 2 * made_ahead == 64
            assert run.config.steps - run.config.warmup_steps == 6 * made_ahead == 192


def test_speeds_of_the_h200() -> None:
    said("Without augmentation it trains 4,635 images/s from files.")
    assert speed("dataloader-files") == 4635
    said("4,641 images/s with it, 4,639 without.")
    assert (speed("randaugment-raw"), speed("dataloader-raw")) == (4641, 4639)
    said("Workers that decode have hardly any time left for RandAugment: 4,491 images/s.")
    assert speed("randaugment-files") == 4491
    said("it costs 11 to 12 ms on top of a step of 55: 3,788 from files, 3,870 from raw bytes.")
    assert speed("randaugment_device-files") == 3788
    assert speed("randaugment_device-raw") == 3870
    assert round(added_ms("randaugment_device-raw")) == 11
    assert round(added_ms("randaugment_device-files", "dataloader-files")) == 12
    assert round(trial("dataloader-raw").step_ms) == 55
    said("mixup and CutMix cost 1.3 and 1.6 ms a step, label smoothing nothing that can be seen.")
    assert [round(added_ms(f"{name}-raw"), 1) for name in ("mixup", "cutmix")] == [1.3, 1.6]
    assert abs(added_ms("label_smoothing-raw")) < 0.05


def test_late_steps() -> None:
    said("Three late steps wait for 64, 101 and 136 ms, 16 steps apart: the same one of 16 workers")
    said_behind("at steps 189, 205, 221 and 242, for 64, 101, 136 and 30 ms.")
    run = recorded("randaugment-files")
    measured = run.steps[run.config.warmup_steps :]
    late = measured[measured["load_s"] > 0.02]
    assert late["step"].tolist() == [189, 205, 221, 242]
    assert (1e3 * late["load_s"]).round().tolist() == [64, 101, 136, 30]
    said_behind("the measured steps is 4,491 images/s, that of the median step 4,640")
    assert round(trial("randaugment-files").images_per_s_median) == 4640


def test_load_ms_of_workers_that_keep_up() -> None:
    said("If `load_ms` without augmentation is about 1 ms, the workers keep up.")
    for name in ("dataloader-raw", "dataloader-files", "randaugment-raw", "label_smoothing-raw"):
        assert round(trial(name).load_ms) == 1


def test_device_behind_the_lab() -> None:
    said_behind("66.1 ms instead of 55.2 from raw bytes, and 67.6 instead of 55.2 from files")
    said_behind("grows by 10.8 and 12.3 ms")
    for stored, step_ms, more in (("raw", 66.1, 10.8), ("files", 67.6, 12.3)):
        on_device, plain = trial(f"randaugment_device-{stored}"), trial(f"dataloader-{stored}")
        assert (round(on_device.step_ms, 1), round(plain.step_ms, 1)) == (step_ms, 55.2)
        assert round(on_device.load_ms - plain.load_ms, 1) == more


def test_other_machines() -> None:
    said("With 8 cores for an A100, as on Jean Zay")
    sites = tomllib.loads((PROJECT / "course/jobs/sites.toml").read_text())
    assert sites["jean-zay-a100"]["cpus_per_gpu"] == 8
    said("a compiled network, which trains 6,800 images/s on this H200")
    eaten = feeding.appetites("nvidia-h200").set_index(["rung", "precision"])["images_per_s"]
    assert round(eaten["compile", "bf16"], -2) == 6800


def test_what_was_trained() -> None:
    said("trained ResNet-50 for 20 epochs of 2,048 images of 128 pixels, with three seeds each")
    for seed in SEEDS:
        for name in day3.BRINGS:
            cfg = recorded(f"{name}-seed-{seed}").config
            assert (cfg.model, cfg.epochs, cfg.image_px) == ("resnet50", 20, 128)
            assert cfg.batch_size * cfg.steps == 2048
    assert len(SEEDS) == 3


def test_what_it_brings() -> None:
    said("with mixing ends at 1.3 instead of 0.2")
    losses = ends().groupby("way")["loss"].mean().round(1)
    assert losses["mixup"] == losses["cutmix"] == 1.3 and losses["none"] == 0.2
    said("ends at 0.90 without mixing, 0.88 with mixup, and 0.83 with CutMix.")
    means = top1("mean").round(2)
    assert (means["none"], means["mixup"], means["cutmix"]) == (0.90, 0.88, 0.83)
    said("CutMix had 0.90 one epoch earlier, and its seeds end between 0.78 and 0.88.")
    runs = [recorded(f"cutmix-seed-{seed}") for seed in SEEDS]
    before = augmentation.brought(runs).query("epoch == 19")["val_top1"].mean()
    assert round(before, 2) == 0.90
    assert (round(top1("min")["cutmix"], 2), round(top1("max")["cutmix"], 2)) == (0.78, 0.88)


def test_what_it_brings_behind_the_lab() -> None:
    said_behind("0.900 without mixing, 0.882 with mixup, 0.832 with CutMix, 0.926 with growing")
    means = top1("mean").round(3)
    assert [means[way] for way in day3.BRINGS] == [0.9, 0.882, 0.832, 0.926]
    said_behind("Three seeds without mixing end between 0.895 and 0.910.")
    assert (round(top1("min")["none"], 3), round(top1("max")["none"], 3)) == (0.895, 0.910)
    said_behind("CutMix had 0.897")
    runs = [recorded(f"cutmix-seed-{seed}") for seed in SEEDS]
    assert round(augmentation.brought(runs).query("epoch == 19")["val_top1"].mean(), 3) == 0.897


def test_sixteen_photographs() -> None:
    said("**made of sixteen photographs**")
    assert len(default_set.PHOTOGRAPHS) == 16


def test_growing_crops() -> None:
    said("with crops of 128, 160, 192 and 224 pixels in four epochs")
    said("128² pixels are a third of 224².")
    said("median step took 21 ms instead of 55, and 32 and 42 at the sizes between")
    grown, fixed = recorded("progressive-epochs"), recorded("dataloader-epochs")
    assert [epoch_px(grown.config, epoch) for epoch in range(4)] == [128, 160, 192, 224]
    assert round(3 * 128**2 / 224**2, 1) == 1.0
    by_epoch = (1e3 * grown.steps.groupby("epoch")["step_s"].median()).round().tolist()
    assert by_epoch == [21, 32, 42, 55]
    assert round(1e3 * fixed.steps["step_s"].median()) == 55
    said("All took 12.6 s instead of 17.0")
    assert [round(run.steps["step_s"].sum(), 1) for run in (grown, fixed)] == [12.6, 17.0]
    said("of which the four first steps of an epoch, with their waits, took 3.0 s in both")
    said_behind("13.9 s without, 9.5 s with. Those four first steps take 3.0 s in both.")
    firsts = [run.steps[first_steps(run)]["step_s"].sum() for run in (grown, fixed)]
    assert max(abs(first - 3.04) for first in firsts) < 0.03
    others = [run.steps[~first_steps(run)]["step_s"].sum() for run in (fixed, grown)]
    assert [round(each, 1) for each in others] == [13.9, 9.5]


def test_growing_crops_keep_the_accuracy() -> None:
    said("crops grew from 64 to 128 pixels. It ended between 0.91 and 0.95, so nothing was lost")
    ends_at = (round(top1("min")["progressive"], 2), round(top1("max")["progressive"], 2))
    assert ends_at == (0.91, 0.95)
    assert recorded("progressive-seed-0").config.start_px == 64
    said("No time was saved there, either: 7.5 s instead of 7.3.")
    took = {
        name: sum(recorded(f"{name}-seed-{seed}").steps["step_s"].sum() for seed in SEEDS) / 3
        for name in ("progressive", "none")
    }
    assert (round(took["progressive"], 1), round(took["none"], 1)) == (7.5, 7.3)
    said_behind("on 64 pixels takes 13 ms in the median, and on 128 pixels 14")
    second = [
        recorded(f"{name}-seed-0").steps.query("epoch == 1")["step_s"].median()
        for name in ("progressive", "none")
    ]
    assert [round(1e3 * each) for each in second] == [13, 14]


SUMS: list[tuple[str, Callable[[], bool]]] = [
    ("16 × 480 = 7,680, and 7,680 ÷ 1.5 = 5,120", lambda: 16 * 480 / 1.5 == 5120),
    (
        "Predicting 0.7 cat and 0.3 coffee exactly still has a loss of 0.61",
        lambda: round(-0.7 * math.log(0.7) - 0.3 * math.log(0.3), 2) == 0.61,
    ),
    ("0.25 × 0.25 = 0.0625", lambda: 0.25 * 0.25 == 0.0625),
    (
        "128 × 128 is 16,384 pixels, 224 × 224 is 50,176: 0.33 of the work",
        lambda: (128**2, 224**2, round(128**2 / 224**2, 2)) == (16384, 50176, 0.33),
    ),
]


@for_all("words, holds", SUMS, ids=[words for words, _ in SUMS])
def test_sums_of_the_quiz(words: str, holds: Callable[[], bool]) -> None:
    assert words in QUIZ and holds()


def test_the_quiz_says_which_questions_reach_ahead() -> None:
    said("Meanwhile, six questions. The last two reach ahead, to sections 7 and 8:")
    assert len(find("day3_2").questions) == 6


def test_length_gives_no_answer_away() -> None:
    questions = find("day3_2").questions
    longest = [max(each.choices, key=lambda choice: len(choice.text)).right for each in questions]
    assert sum(longest) <= 2
