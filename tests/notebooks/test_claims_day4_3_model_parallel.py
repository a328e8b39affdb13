"""Lab 4.3, layers shared out: what its text and its quiz say of numbers, beside the records."""

import pandas as pd
import pytest
import torch
from claims import text_of, text_of_quiz
from job_helpers import warm_up
from torch.utils.flop_counter import FlopCounterMode

from course import comm_report
from course.topics import parallel
from course.training import models

TEXT, QUIZ = text_of("day4_3_model_parallel"), text_of_quiz("day4_3")
BETWEEN_NODES = 50  # GB/s a GPU: InfiniBand of 400 Gb/s, one port for each


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return parallel.ways(parallel.recorded())


@pytest.fixture(scope="module")
def coatnet() -> torch.nn.Module:
    with torch.device("meta"):
        return models.create("coatnet_5_224", 1000, 224).eval()


@pytest.mark.slow
def test_cuts_and_what_a_forgotten_sum_does(own_turns: None) -> None:
    warm_up()
    cuts, forgotten = parallel.cuts(), parallel.forgotten()
    assert "the result is off by a third" in TEXT
    assert cuts["error"].iloc[-1] == pytest.approx(1 / 3, abs=0.02)
    assert "One sum, and it is done" in TEXT and "one: an all-reduce of the result" in QUIZ
    assert cuts["messages"].iloc[0] == 1
    assert "the last one 2 % too high" in TEXT and len(forgotten) == 12
    assert round(100 * (forgotten["without"] / forgotten["whole"] - 1).iloc[-1]) == 2


def test_shares_of_weights() -> None:
    net = models.create("vit_tiny_patch16_224", 10, 64)
    block = net.blocks[0]
    share = models.parameter_count(block.mlp) / models.parameter_count(block)
    assert "Two thirds of a transformer's block are its [MLP]" in TEXT
    assert share == pytest.approx(2 / 3, abs=0.01)
    assert "MLPs are halved, the rest is not: 69 %" in TEXT
    assert round(100 * parallel.share("vit_tiny_patch16_224", 2)) == 69
    assert "a third of the weights is saved" in TEXT
    assert 1 - parallel.share("coatnet_5_224", 2) == pytest.approx(1 / 3, abs=0.02)


def test_arithmetic_tells_the_rate(coatnet: torch.nn.Module, table: pd.DataFrame) -> None:
    with torch.no_grad(), (counter := FlopCounterMode(display=False, depth=6)):
        coatnet(torch.empty(1, 3, 224, 224, device="meta"))
    counts = counter.get_flop_counts()
    mlps = sum(sum(each.values()) for name, each in counts.items() if name.endswith(".mlp"))
    share = mlps / counter.get_total_flops()
    assert "Of CoAtNet-5's arithmetic 52 % are MLPs" in TEXT and round(share, 2) == 0.52
    told = 24 / (48 * (1 - 0.52 / 2))
    assert "Arithmetic alone says 0.68" in TEXT and round(told, 2) == 0.68
    assert round(table.loc["tensor-24", "of_ddp"], 2) == 0.68
    assert table.loc["tensor-24", "peak_gib"] > table.loc["ddp-24", "peak_gib"]


def test_messages_of_a_step() -> None:
    step = comm_report(parallel.recorded()["tensor-traced-24"])
    assert "60 sums, 8 ms of a step, none of them hidden" in TEXT
    assert len(step) == 60 and round(step["exposed_ms"].sum()) == 8
    assert step["overlapped_ms"].sum() == 0
    sent = step["bytes"].sum() / 1e9
    assert "These 2.08 GB would take 42 ms between nodes, at 50 GB/s" in TEXT
    assert round(sent, 2) == 2.08 and round(1e3 * sent / BETWEEN_NODES) == 42
    told = parallel.sent("coatnet_5_224", [48]).loc[48, "tensor"]
    assert told == pytest.approx(sent, rel=0.01)  # what the formula says is what was traced


def test_from_how_many_images_on_more_is_sent() -> None:
    sent = parallel.sent("coatnet_5_224", [48, 64])
    assert (sent["tensor"] > sent["data"]).tolist() == [False, True]


def test_the_table_of_ways(table: pd.DataFrame) -> None:
    rows = {
        "DDP": ("ddp-48", "350 images/s, 46 GiB, 3.5 J an image"),
        "FSDP2": ("zero3-48", "372, 38 GiB, 3.3 J"),
        "tensor": ("tensor-48", "202, 70 GiB, 6.0 J"),
        "pipeline": ("pipe-1f1b-4", "240, 32 and 11 GiB, 4.6 J"),
    }
    for name, (run, said) in rows.items():
        assert f"| {name} |" in TEXT and said in TEXT
        numbers = [float(each) for each in said.replace(",", " ").split() if each[0].isdigit()]
        found = table.loc[run]
        due = [found["images_per_s"], found["peak_gib"], found["joules_per_image"]]
        if "and" in said:
            due.insert(2, found["least_gib"])
        assert [round(each, 1 if each < 10 else 0) for each in due] == numbers
    assert {*table.loc[[run for run, _ in rows.values()], "batch"]} == {96}
