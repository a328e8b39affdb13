"""Lab 2.3: what its text and its quiz say of numbers, held against the recorded runs."""

import json

import pandas as pd
import pytest
from claims import network, text_of, text_of_quiz

from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import communication, scaling
from course.topics.scaling import node
from course.topics.scaling.efficiency import Fit
from course.topics.scaling.ring import all_reduce_s
from course.topics.supercomputer.history import IMAGENET_IMAGES
from course.training import models

TEXT, QUIZ = text_of("day2_3_scaling"), text_of_quiz("day2_3")
MACHINE = "nvidia-h200-x4"
NETWORK = scaling.Link(5e-6, 50e9)  # assumed


def measured(rung: str) -> pd.DataFrame:
    """By GPUs and images on each, with what a step is longer by than on one GPU."""
    table = scaling.scaling(scaling.recorded_runs(MACHINE, rung))
    alone_s = table.groupby("images_each")["step_s"].transform("first")
    table = table.assign(added_ms=(table["step_s"] - alone_s) * 1e3)
    return table.set_index(["gpus", "images_each"])


@pytest.fixture(scope="module")
def eager() -> pd.DataFrame:
    return measured("channels_last")


@pytest.fixture(scope="module")
def compiled() -> pd.DataFrame:
    return measured("compile")


@pytest.fixture(scope="module")
def of_h100() -> dict[int, Run]:
    return {
        run.config.batch_size: run
        for run in recordings.recorded_runs("nvidia-h100")
        if run.config.rung == "channels_last"
        and run.config.precision == "bf16"
        and run.config.data == "synthetic"
        and run.record.device == "cuda"
        and run.record.status == "ok"
    }


@pytest.fixture(scope="module")
def messages() -> pd.DataFrame:
    traced = [
        *communication.recorded_runs(MACHINE, 2).values(),
        *communication.recorded_runs(MACHINE, 4).values(),
    ]
    return communication.messages(traced)


@pytest.fixture(scope="module")
def fitted(messages: pd.DataFrame) -> Fit:
    return scaling.fit(scaling.recorded_runs(MACHINE), messages)


def test_four_gpus_with_the_eager_step(eager: pd.DataFrame) -> None:
    one, four = eager.loc[(1, 256)], eager.loc[(4, 256)]
    assert "Four GPUs train 3.91 times as many images a second as one" in TEXT
    assert round(four["images_per_s"] / one["images_per_s"], 2) == 3.91
    assert "an efficiency of 97.8 %" in TEXT and round(four["efficiency"] * 100, 1) == 97.8
    assert "the step takes only 1.2 ms more" in TEXT and round(four["added_ms"], 1) == 1.2
    assert "each GPU hands 102 MB of gradients to the others" in TEXT
    weights = models.parameter_count(network("resnet50"))
    assert round(4 * weights / 1e6) == 102
    assert "One GPU trains 4,668 images/s, and four train 18,267" in QUIZ
    assert round(one["images_per_s"]) == 4668 and round(four["images_per_s"]) == 18267
    assert "18,267 ÷ (4 × 4,668) is 0.978" in QUIZ and "Four times 4,668 are 18,670" in QUIZ
    assert round(18267 / 4 / 4668, 3) == 0.978 and abs(18_670 - 4 * one["images_per_s"]) < 5


def test_four_gpus_with_the_compiled_step(eager: pd.DataFrame, compiled: pd.DataFrame) -> None:
    one, four = compiled.loc[(1, 256)], compiled.loc[(4, 256)]
    assert "one GPU then trains 46 % more images a second" in TEXT
    assert round(one["images_per_s"] / eager.loc[(1, 256), "images_per_s"] * 100) == 146
    assert four["efficiency"] < eager.loc[(4, 256), "efficiency"]
    assert "With 256 images on each, four GPUs add 2.1 ms to a step of 38" in TEXT
    assert round(four["added_ms"], 1) == 2.1 and round(one["step_s"] * 1e3) == 38
    assert "With 512 images it is 2.8 ms to 72" in TEXT
    assert round(compiled.loc[(4, 512), "added_ms"], 1) == 2.8
    assert round(compiled.loc[(1, 512), "step_s"] * 1e3) == 72
    assert "Each GPU draws about as much power as one alone" in TEXT
    for images in (256, 512):
        alone_w = compiled.loc[(1, images), "watts"]
        assert compiled.loc[(4, images), "watts"] / 4 == pytest.approx(alone_w, rel=0.03)


def test_the_quiz_of_the_compiled_step(eager: pd.DataFrame, compiled: pd.DataFrame) -> None:
    before, after = eager.loc[(4, 256)], compiled.loc[(4, 256)]
    assert "efficiency falls from 97.8 % to 94.8 %" in QUIZ
    assert round(after["efficiency"] * 100, 1) == 94.8
    assert "four GPUs train 41 % more images a second" in QUIZ
    assert round(after["images_per_s"] / before["images_per_s"] * 100) == 141
    assert "25,755 images/s instead of 18,267" in QUIZ and round(after["images_per_s"]) == 25755
    assert "0.101 joules instead of 0.135" in QUIZ
    assert [round(each["joules_per_image"], 3) for each in (after, before)] == [0.101, 0.135]


def test_eight_gpus_are_predicted() -> None:
    assert "And eight GPUs?" in TEXT and "says 94.9 %" in TEXT
    assert "between 93.0 and 96.0 %" in TEXT
    said = node.predicted().set_index("rung").loc["compile"]
    shown = [round(100 * said["efficiency" + end], 1) for end in ("", "_low", "_high")]
    assert shown == [94.9, 93.0, 96.0]


def test_what_ddp_itself_costs() -> None:
    lines = (PROJECT / "benchmarks" / "ddp_h200_x4.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["machine"] for row in rows} == {"NVIDIA H200"} and {
        row["ranks"] for row in rows
    } == {4}
    ms = {kind: [row["step_ms"][1] for row in rows if row["compiled"] == kind] for kind in (0, 1)}
    saved, broadcast, rest = (
        [round(ms[kind][before] - ms[kind][after], 2) for kind in (0, 1)]
        for before, after in ((1, 2), (2, 3), (3, 0))
    )
    assert "It saves 0.35 ms of the eager step and 0.75 ms of the compiled one" in TEXT
    assert saved == [0.35, 0.75]
    assert "That takes 0.5 and 0.3 ms" in TEXT and [round(each, 1) for each in broadcast] == [
        0.5,
        0.3,
    ]
    assert "The rest, 0.7 and 1.2 ms" in TEXT and [round(each, 1) for each in rest] == [0.7, 1.2]


def test_files_on_several_gpus(eager: pd.DataFrame) -> None:
    runs = scaling.recorded_runs(MACHINE, "dataloader")
    table = scaling.scaling(runs).set_index("gpus")
    assert "47 % on four GPUs: are 64 cores too few?" in TEXT
    assert round(table.loc[4, "efficiency"] * 100) == 47
    assert {run.record.hardware["cores"] for run in runs} == {64}
    assert "Most waiting is for an epoch's first batch, 0.4 s on one GPU as on four" in TEXT
    for run in runs:
        later = run.steps[run.steps["epoch"] > 0]
        first = later.groupby("epoch")["load_s"].first()
        assert round(first.median(), 1) == 0.4
        assert first.sum() > 0.5 * later["load_s"].sum()
    assert (
        "The set has 1,024 images. One GPU made 16 steps of them, and four GPUs only four" in TEXT
    )
    for run, steps in zip(runs, (16, 8, 4), strict=True):
        assert run.steps.groupby("epoch").size().max() == steps
        assert steps * run.config.batch_size == 1024
    assert "An epoch of ImageNet has 1,251 steps of 1,024 images" in TEXT
    assert IMAGENET_IMAGES // 1024 == 1251
    assert "In a long epoch it is the cores that count" in TEXT  # 64 feed about half
    steps = runs[-1].steps.query("epoch > 0")
    worker = 64 / steps.groupby("epoch")["load_s"].first().median()
    assert 0.45 < 64 * worker / eager["images_per_s"].max() < 0.55


def test_the_last_bucket_is_exposed(of_h100: dict[int, Run]) -> None:
    sent = scaling.buckets(network("resnet50"), image_px=224, bucket_mb=25)
    assert "more than half of all gradients are ready after a twentieth of it" in TEXT
    early = sum(bucket.size for bucket in sent if bucket.ready < 0.05)
    assert early > 0.5 * sum(bucket.size for bucket in sent)
    backward_s = of_h100[256].record.backward_s
    table = scaling.timeline(sent, 8, scaling.Link(10e-6, 5e9), backward_s)
    assert "So it is always exposed, here for 6 ms" in TEXT
    assert round((table["end_s"].iloc[-1] - backward_s) * 1e3) == 6
    assert (table["end_s"].iloc[:-1] < backward_s).all()
    assert sent[-1].ready == 1 and "The last: it is full when backward ends" in QUIZ


@pytest.mark.slow
def test_messages_between_the_h200s(messages: pd.DataFrame, fitted: Fit) -> None:
    small = messages[messages["bytes"] <= 8192]["duration_s"] * 1e6
    assert "up to 8 kB, most messages take 9 µs, whatever their size" in TEXT
    assert small.between(8.4, 9.8).mean() > 0.6 and round(small.median()) == 9
    assert "some more than a hundred times as long as the link needs" in TEXT
    needed = [all_reduce_s(row.bytes, row.ranks, fitted.link) for row in messages.itertuples()]
    assert (messages["duration_s"] / needed > 100).sum() >= 2
    assert "No, it is nearly the same" in TEXT
    price = [
        2 * (ranks - 1) * scaling.fit(scaling.recorded_runs(MACHINE), some).link.alpha_s
        for ranks, some in messages.groupby("ranks")
    ]
    assert 0.8 < price[1] / price[0] < 1.25


@pytest.mark.slow
def test_what_the_model_says_of_a_step(fitted: Fit) -> None:
    assert "plus DDP's own 1.0 ms, plus 0.1 ms that is exposed" in TEXT
    assert round(fitted.own_s * 1e3, 1) == 1.0
    assert [round(each, 1) for each in fitted.table["exposed_ms"]] == [0.1, 0.1]
    assert (fitted.table["model_ms"] / fitted.table["measured_ms"] - 1).abs().max() < 0.005


@pytest.mark.slow
def test_the_model_to_2048_gpus(fitted: Fit, of_h100: dict[int, Run]) -> None:
    counts, base = [2**k for k in range(12)], of_h100[256]
    ring = scaling.predicted(base, NETWORK, counts, own_s=fitted.own_s).set_index("gpus")
    assert "Up to 32 GPUs, DDP's own work is the largest loss. Then α takes over" in TEXT
    assert (ring.loc[2:32, "exposed_ms"] < 1e3 * fitted.own_s).all()
    assert ring.loc[64, "exposed_ms"] > 1e3 * fitted.own_s
    last = scaling.buckets(network("resnet50"), 224, 25)[-1]
    of_bytes = 2 * 63 / 64 * last.size / NETWORK.bytes_per_s
    assert 2 * 127 * NETWORK.alpha_s > of_bytes  # of the exposed part, from 128 GPUs on
    small = scaling.predicted(of_h100[64], NETWORK, counts, own_s=fitted.own_s).set_index("gpus")
    assert "With 64 images on each GPU backward is shorter, and all of this shows earlier" in TEXT
    assert (small["efficiency"] <= ring["efficiency"]).all()
    assert "Over 512 GPUs the model says 90 % with 256 images on each, and 55 % with 64" in QUIZ
    assert [round(each.loc[512, "efficiency"] * 100) for each in (ring, small)] == [90, 55]
    ends = [
        scaling.predicted(base, link, [2048], own_s=fitted.own_s)["efficiency"][0]
        for link in (NETWORK, scaling.Link(1e-6, 50e9), scaling.Link(5e-6, 100e9))
    ]
    assert ends[1] > ends[0] + 0.3 > ends[2] + 0.25  # "Try it yourself": α, hardly β


def test_alpha_over_2048_gpus(of_h100: dict[int, Run]) -> None:
    sent = scaling.buckets(network("resnet50"), 224, 25)
    assert "each bucket takes 4,094 messages, 20 ms of α alone" in TEXT
    assert 2 * 2047 == 4094 and round(4094 * NETWORK.alpha_s * 1e3) == 20
    assert "Four buckets take 82 ms of it, and backward lasts 35" in TEXT
    assert len(sent) == 4 and round(4 * 4094 * NETWORK.alpha_s * 1e3) == 82
    assert round(of_h100[256].record.backward_s * 1e3) == 35
    assert "Fewer messages help." in TEXT and "as many bytes, in 188 messages" in TEXT
    assert all_reduce_s(0, 2048, scaling.Link(1.0, 1.0), rows=32) == 188


def test_what_the_model_leaves_out(of_h100: dict[int, Run]) -> None:
    assert "2,048 GPUs at 4,000 images/s read nearly a terabyte of JPEG files a second" in TEXT
    speed = of_h100[256].record.images_per_s
    assert round(speed, -3) == 4000 and 0.85 < 2048 * speed * 110e3 / 1e12 < 1
    assert "2,048 × 256 images are two fifths of ImageNet in one batch" in TEXT
    assert pytest.approx(2 / 5, rel=0.03) == 2048 * 256 / IMAGENET_IMAGES


def test_a_ring_sends_hardly_more_bytes_and_many_more_messages() -> None:
    assert "175 MB for 8 ranks and 199.8 MB for 1,024" in QUIZ
    assert [round(2 * (p - 1) / p * 100, 1) for p in (8, 1024)] == [175, 199.8]
    assert "from 14 to 2,046" in QUIZ and [2 * (p - 1) for p in (8, 1024)] == [14, 2046]
    assert "About 14 % more bytes" in QUIZ and round((199.8 / 175 - 1) * 100) == 14
    assert "The second term stays below 2 n/β" in TEXT
    assert "2(p − 1) is 4,094" in TEXT


def test_the_quiz_has_five_questions() -> None:
    assert QUIZ.count("[[questions]]") == 5
