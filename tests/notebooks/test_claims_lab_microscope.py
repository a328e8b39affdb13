"""The lab of the microscope says what is recorded, and what is published."""

import re
from functools import cache

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.config import rung
from course.runs import recordings
from course.topics import gpus, microscope, roofline
from course.topics.microscope import given, names, record, steps, written

TEXT = text_of("lab_microscope")


def said(words: str) -> None:
    assert words in TEXT, words


@cache
def first() -> pd.DataFrame:
    return microscope.in_steps("first, 3 to 64 channels, 7 x 7").set_index(["format", "layout"])


@cache
def inner() -> pd.DataFrame:
    return microscope.in_steps("64 to 64 channels, 3 x 3").set_index(["format", "layout"])


def test_instructions() -> None:
    said("one such instruction did 512 multiplications and additions")
    table = microscope.generations()
    assert table.loc["Volta", "flop"] == 512
    said("it doubled with Ampere, and again with Hopper")
    clocks = table["flop_per_clock"]
    assert (
        round(clocks["Ampere"] / clocks["Turing"])
        == 2
        == round(clocks["Hopper"] / clocks["Ampere"])
    )
    said("Here are twelve names")
    said("Seven of the twelve use Tensor Cores")
    assert len(names.FEW) == 12 and sum(each.used for each in names.FEW) == 7
    said("100 kernels that a counter judged on an H100")
    assert len(names.judged_by_counters()) == 100
    assert written.knows_others(given.uses_tensor_cores)


def test_rows_and_loads() -> None:
    said("A row of 4,097 numbers in bf16 has 8,194 bytes")
    assert 4097 * 2 == 8194 and given.widest_load(4097, 2) == 2
    bf16, tf32 = (microscope.channels(each).set_index("channels") for each in ("bf16", "tf32"))
    said("the counts with loads of 16 bytes reach 127 to 561 TFLOP/s, all others 58 to 219")
    wide = bf16["load"] == 16
    for rows, ends in ((bf16[wide], (127, 561)), (bf16[~wide], (58, 219))):
        rate = rows["tflop_per_s"].round()
        assert (rate.min(), rate.max()) == ends
    said("68 channels, with 8 bytes, are slower than 65, with 2")
    assert bf16.loc[[68, 65], "load"].tolist() == [8, 2]
    assert bf16.loc[68, "tflop_per_s"] < bf16.loc[65, "tflop_per_s"]
    said("There 60 channels reach 118 TFLOP/s, and 62 reach 64; in bf16 the two are 98 and 100.")
    assert tf32.loc[[60, 62], "tflop_per_s"].round().tolist() == [118, 64]
    assert bf16.loc[[60, 62], "tflop_per_s"].round().tolist() == [98, 100]
    said("68 channels in TF32 are wide, and reach 57")
    assert tf32.loc[68, "load"] == 16 and round(tf32.loc[68, "tflop_per_s"]) == 57
    said("K and N go from 8 below a size to 8 above it, each by itself. That makes 289 products")
    assert (2 * 8 + 1) ** 2 == 289


def test_tiles_and_waves() -> None:
    said("of which an H100 has 132")
    assert gpus.summary().loc["H100", "sms"] == 132
    said("A tile that cuBLAS often takes on an H100 is 128 × 256.")
    kernels = steps._counters()["kernel"].drop_duplicates()
    tiles = kernels[kernels.str.startswith("nvjet")].map(record.tile).value_counts()
    assert tiles.index[0] == (128, 256)
    table = microscope.sizes("bf16").set_index("size")
    said("512 × 512 is 8 such tiles: 6 % of the multiprocessors have work, and 5 % of the speed")
    percent = (100 * table[["filled", "reached"]]).round()
    assert table.loc[512, "tiles"] == 8 and percent.loc[512].tolist() == [6, 5]
    said("At 1,024 it is 24 and 31 %")
    assert percent.loc[1024].tolist() == [24, 31]
    said("From 2,048 on 97 % of the turns are filled")
    assert (percent.loc[2048:, "filled"] == 97).all()


def test_one_convolution_in_six_settings() -> None:
    table = inner()
    said("Only fp32 ran on ordinary cores: its kernel's name has `ffma`.")
    other = table[table["tensor_cores"] != "used"]
    assert len(table) == 6 and [*other.index] == [("fp32", "NCHW")]
    assert "ffma" in other["name"].item()
    said("TF32 is 4.7 times as fast, and bf16 9.8 times, with Hopper's instruction")
    us = table["us"]["fp32", "NCHW"] / table["us"]
    assert (round(us["tf32", "NCHW"], 1), round(us["bf16", "NCHW"], 1)) == (4.7, 9.8)
    assert (table.drop(index=("fp32", "NCHW"))["generation"] == "hopper").all()
    said("to rewrite the layout takes 202 µs in bf16, and the product 144")
    assert table.loc[("bf16", "NCHW"), ["others_us", "us"]].round().tolist() == [202, 144]


def test_the_first_convolution() -> None:
    said("The network's first convolution has 3 channels, so a pixel is 6 bytes.")
    table = first()
    said("Same shape, same bytes, and 3.8 times as fast.")
    bf16, fp16 = table.loc[("bf16", "NHWC")], table.loc[("fp16", "NHWC")]
    assert round(bf16["us"] / fp16["us"], 1) == 3.8
    said("a kernel of Ampere's, for any convolution: `align8`")
    assert bf16["generation"] == "ampere" and "s16816" in bf16["name"] and "align8" in bf16["name"]
    said("made for a `first_layer`: padded to 4 (`c4`), with a small instruction, `tensor1688`")
    assert all(each in fp16["name"] for each in ("first_layer", "c4r7s7", "tensor1688"))
    assert bf16["others_us"] > 0 and fp16["others_us"] > 0  # they are padded


def test_counters() -> None:
    bf16 = first().loc[("bf16", "NHWC")]
    said("The first convolution in bf16 reached 40 TFLOP/s, 4 % of the data sheet.")
    assert round(bf16["tflop_per_s"]) == 40 and round(100 * bf16["tflop_per_s"] / 989) == 4
    said("They were busy in 65 % of the cycles, for 4 % of the rate. Five of the eight channels")
    assert round(100 * bf16["tensor_active"]) == 65 and 8 - 3 == 5
    said("keeps them busy for half of the cycles, and reaches 409 TFLOP/s")
    same = inner().loc[("bf16", "NHWC")]
    assert round(same["tensor_active"], 2) == 0.50 and round(same["tflop_per_s"]) == 409
    said("In fp32 the counter shows 0.03 %")
    assert inner().loc[("fp32", "NCHW"), "tensor_active"] == 0.0003


def test_the_ceiling() -> None:
    said("the data sheet's 989 TFLOP/s in bf16")
    assert gpus.summary().loc["H100", "fp16"] == 989
    bf16 = microscope.largest().loc["bf16"]
    said("Of six products in bf16, the fastest has 4,096 rows: 704 TFLOP/s.")
    assert (bf16["tried"], bf16["size"], round(bf16["tflop_per_s"])) == (6, 4096, 704)
    said("Lab 1.4 took one size, 8,192, and found 673.")
    saved = recordings.load("nvidia-h100")["ceilings"]
    assert round(saved["bf16"]["tflop_per_s"]) == 673 and "8192 x 8192" in saved["command"]
    said("The data sheet's 989 belong to a clock of 1,830 MHz.")
    assert [row[2] for row in microscope.tables.GENERATIONS if row[1] == "H100"] == [1830]


@pytest.mark.slow
def test_the_roofline() -> None:
    said("No run comes nearer to its roof or goes farther: in 16 bits it is memory that holds them")
    usual, found = roofline.recorded_ceilings("nvidia-h100"), microscope.ceilings()
    assert usual.bytes_per_s == found.bytes_per_s
    assert all(usual.flop_per_s[name] == found.flop_per_s[name] for name in ("fp32", "tf32"))
    cost = roofline.step_cost(rung("channels_last", batch_size=256))
    for name in ("bf16", "fp16"):  # fewer operations a byte than where the roof bends
        assert cost.flop_per_byte < usual.flop_per_s[name] / usual.bytes_per_s


def test_the_quiz() -> None:
    quiz = text_of_quiz("lab_microscope")
    for words, true in (
        ("It is 0.2 % less work, with loads an eighth as wide.", round(700 / 4008, 1) == 0.2),
        ("Rows of 4,008 begin at multiples of 16 bytes.", given.widest_load(4008, 2) == 16),
        ("Rows of 4,001 numbers begin at odd places", given.widest_load(4001, 2) == 2),
        ("4 numbers of 4 bytes are 16 bytes.", given.widest_load(4, 4) == 16),
        ("The second wave has one tile", given.waves(133, 1, (1, 1), 132) == 2),
    ):
        assert words in quiz and true, words
    assert not re.search(r"READ_", TEXT)
