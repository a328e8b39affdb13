"""The lab of inference says what is computed, and what an H100 measured."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
import torch
from claims import text_of
from torch import nn

from course.runs.run import PROJECT
from course.topics import inference
from course.topics.inference import int8
from course.training import models

TEXT = text_of("lab_inference")


def said(words: str) -> None:
    assert words in TEXT, words


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two that share their cores with other tests wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """Trained for a fifth as long as in the lab."""
    return inference.train(steps=48)


@pytest.mark.slow
def test_a_forgotten_eval(net: nn.Module) -> None:
    table = inference.forgotten(net, batches=(256, 1), images=256).set_index("batch")
    whole = inference.top1(net, 256)
    said("With 256 images at once hardly anybody would notice")
    assert table.loc[256, "eval() forgotten"] > 0.8 * whole
    said("Alone, an image is normalised by itself, and what told it from others is gone.")
    assert table.loc[1, "eval() forgotten"] < 0.3 * whole
    said("`eval()` came late, and does not help: each forward pass in training moved the averages.")
    assert table.loc[1, "eval() after that"] < 0.8 * whole


@pytest.mark.slow
def test_bits(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "CALIBRATED_ON", 64)
    table = inference.by_bits(net, bits=(8, 6, 3), images=384)
    kept = table.assign(kept=table["top1"] / table["fp32"]).pivot(
        index="bits", columns="scales", values="kept"
    )
    said("Eight bits cost nothing that shows, six hardly anything. Then it falls fast.")
    assert kept.loc[8].min() > 0.96 and kept.loc[6].min() > 0.9 and kept.loc[3].max() < 0.7
    said("In this one it hardly shows")
    assert (kept["a channel"] - kept["a tensor"]).loc[[8, 6]].abs().max() < 0.08


@pytest.mark.slow
def test_calibration(net: nn.Module) -> None:
    seen = inference.by_calibration(net, images=384)
    said("Eight training crops do as well as 512.")
    assert abs(seen["8 training crops"] - seen["512 training crops"]) < 0.03
    said("Dark ones promise small numbers, and all that is larger is cut off.")
    said("One wild number does the opposite: everything else shares a few steps.")
    spoiled = ["the same, ten times as dark", "one number a thousand times too large"]
    assert (seen[spoiled] < 0.6 * seen["fp32"]).all()


def test_what_is_counted() -> None:
    said("Seven convolutions learn the crops of lab 3.3, 16 photographs to tell apart")
    small = models.create("resnet8_patches", 16)
    assert sum(isinstance(part, nn.Conv2d) for part in small.modules()) == 7
    said("ResNet-50 has 53 convolutions")
    with torch.device("meta"):
        large = models.create("resnet50", 1000)
    assert sum(isinstance(part, nn.Conv2d) for part in large.modules()) == 53
    said("at least 90 % of all the images a second")
    assert inference.latency.NEARLY == 0.9


@cache
def h100(part: str) -> pd.DataFrame:
    table = inference.recorded("nvidia-h100")
    return table[table["part"] == part].set_index(["batch", "way"]).sort_index()


def test_modes_on_a_gpu() -> None:
    many = h100("mode").loc[256]
    peak, ms = many["peak_gib"], 1e3 * many["p50_s"]
    said("10.4 GiB against 1.2: there is room for eight times the images.")
    assert [round(peak[each], 1) for each in ("evaluation", "inference_mode")] == [10.4, 1.2]
    assert round(peak["evaluation"] / peak["inference_mode"]) == 8
    said("With 256 of them the time is the same, 20 ms")
    assert {round(ms[each]) for each in ("evaluation", "no_grad", "inference_mode")} == {20}
    said("In training's mode it takes 36 ms")
    assert round(ms["training"]) == 36
    said("`no_grad` and `inference_mode` do not differ here.")
    assert peak["no_grad"] == peak["inference_mode"]
    one = h100("mode").loc[1, "p50_s"]
    assert one["no_grad"] == pytest.approx(one["inference_mode"], rel=0.05)


def test_the_knee_on_a_gpu() -> None:
    table = h100("batch").reset_index()
    eager, graph = (
        table[table["way"] == name].set_index("batch") for name in ("eager", "CUDA graph")
    )
    said("Eager, up to 32 images a call takes 2.6 to 3.6 ms, however many there are")
    few = 1e3 * eager.loc[:32, "p50_s"]
    assert (round(few.min(), 1), round(few.max(), 1)) == (2.6, 3.6)
    said("One image then takes 0.63 ms.")
    assert round(1e3 * graph.loc[1, "p50_s"], 2) == 0.63
    said("From 64 on both are alike")
    assert (eager["p50_s"] / graph["p50_s"]).loc[64:].between(1, 1.05).all()
    said("So the knee comes *earlier*, at 32 instead of 64.")
    assert [inference.knee(each.reset_index()) for each in (graph, eager)] == [32, 64]
    said("a graph's is within 3 % of its median, eager's up to 58 % above")
    late = [each["p99_s"] / each["p50_s"] - 1 for each in (graph, eager)]
    assert late[0].max() < 0.03 and round(100 * late[1].max()) == 58


def test_the_ladder_on_a_gpu() -> None:
    one, many = h100("ladder").loc[1], h100("ladder").loc[256]
    said("One image: 14 times, 0.41 ms instead of 5.8.")
    assert round(one.loc["+ CUDA graph", "faster"]) == 14
    last = one.loc[["+ CUDA graph", "fp32"], "p50_s"]
    assert [round(1e3 * last.iloc[0], 2), round(1e3 * last.iloc[1], 1)] == [0.41, 5.8]
    said("The last rung alone makes it 4.5 times as fast, with the same kernels.")
    assert round(gain(one, "+ compiled", "+ CUDA graph"), 1) == 4.5
    ways = inference.LADDER
    assert replace(ways["+ CUDA graph"], graph=False) == ways["+ compiled"]
    said("channels_last and bf16 by themselves made it *slower*.")
    assert (one.loc[["+ channels_last", "+ bf16"], "faster"] < 1).all()
    assert gain(one, "+ channels_last", "+ bf16") < 1
    said("256 images: the graph adds 6 %, bf16 and the compiler the rest.")
    assert round(100 * gain(many, "+ compiled", "+ CUDA graph")) == 106
    others = gain(many, "+ channels_last", "+ bf16") * gain(many, "+ folded", "+ compiled")
    assert others > many.loc["+ CUDA graph", "faster"]
    said("channels_last costs 20 % in fp32")
    assert round(100 / gain(many, "fp32", "+ channels_last")) == 120
    said("Folding costs 12 %")
    assert round(100 / gain(many, "+ bf16", "+ folded")) == 112


BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())


def test_behind_the_lab() -> None:
    one, many = h100("ladder").loc[1], h100("ladder").loc[256]
    told = "took 4.3 ms among the modes and 6.8 ms on the ladder"
    assert told in BEHIND
    assert round(1e3 * h100("mode").loc[(1, "inference_mode"), "p50_s"], 1) == 4.3
    assert round(1e3 * one.loc["+ bf16", "p50_s"], 1) == 6.8
    assert "TF32 took 41 ms where fp32 took 72, and fp16 with channels last 18.7 where" in BEHIND
    rows = ["TF32", "fp32", "fp16, channels_last", "+ bf16"]
    ms = 1e3 * many.loc[rows, "p50_s"]
    assert [round(each, 1) for each in ms] == [41.5, 71.9, 18.7, 19.9]
    assert "bf16 moves them by up to 17 % of the largest before anything is folded" in BEHIND
    off = h100("ladder")["error"].loc[:, ["+ bf16", "bf16"]]
    assert round(100 * off.max()) == 17


def gain(rows: pd.DataFrame, before: str, after: str) -> float:
    """How many times as fast one way is as the one before it."""
    return rows.loc[before, "p50_s"] / rows.loc[after, "p50_s"]
