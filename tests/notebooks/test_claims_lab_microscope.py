"""The lab of the microscope says what is recorded, and what is published."""

import re
from functools import cache

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course import recorded
from course.runs.recordings import load
from course.runs.run import PROJECT
from course.topics import gpus, microscope, roofline
from course.topics.microscope import given, measured, names, record, written

TEXT = text_of("lab_microscope")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())


def said(words: str) -> None:
    assert words in TEXT, words


@cache
def first() -> pd.DataFrame:
    return microscope.in_steps("first, 3 to 64 channels, 7 x 7").set_index(["format", "layout"])


@cache
def inner() -> pd.DataFrame:
    return microscope.in_steps("64 to 64 channels, 3 x 3").set_index(["format", "layout"])


@cache
def h100() -> record.Seen:
    return microscope.recorded()


def test_it_is_short_enough() -> None:
    assert len(re.sub(r"[`*|#\[\]()$>-]", " ", TEXT).split()) <= 2000


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
    said("In bf16 loads of 16 bytes reach 127 to 561 TFLOP/s, all others 58 to 219.")
    wide = bf16["load"] == 16
    for rows, ends in ((bf16[wide], (127, 561)), (bf16[~wide], (58, 219))):
        rate = rows["tflop_per_s"].round()
        assert (rate.min(), rate.max()) == ends
    said("In TF32 four numbers are 16 bytes: there 60 channels reach 118, and 62 reach 64.")
    assert tf32.loc[[60, 62], "tflop_per_s"].round().tolist() == [118, 64]
    said("68 channels in TF32 are wide, and reach 57")
    assert tf32.loc[68, "load"] == 16 and round(tf32.loc[68, "tflop_per_s"]) == 57


def test_the_map() -> None:
    said("K and N go from 8 below 4,096 to 8 above it, each by itself: 289 products in bf16")
    table = microscope.pictures.by_load(h100().near)
    assert len(table) == 289 and set(table["dtype"]) == {"bf16"}
    assert {*table["k"]} == {*table["n"]} == {*range(4088, 4105)}
    rate = table["tflop_per_s"]
    said("Nine, in which K and N both are multiples of 8; in the median they reach 747 TFLOP/s.")
    fast = table[rate > rate.max() / 2]
    assert (
        len(fast) == 9 and fast["load"].eq(16).all() and round(fast["tflop_per_s"].median()) == 747
    )
    said("With loads of 8 or 4 bytes it is 257, with 2 bytes 151.")
    assert table["load"].nunique() == 4
    middle, narrow = table[table["load"].isin([4, 8])], table[table["load"] == 2]
    assert [round(each["tflop_per_s"].median()) for each in (middle, narrow)] == [257, 151]
    # Three levels: no level reaches into the next.
    assert narrow["tflop_per_s"].max() < middle["tflop_per_s"].min()
    assert middle["tflop_per_s"].max() < fast["tflop_per_s"].min()
    said(
        "`nvjet` needs 16 bytes. For less there are two, `align2`, written for Ampere, and `align1`"
    )
    for rows, family in ((fast, "nvjet, Hopper"), (middle, "align2, Ampere")):
        assert {names.family(each) for each in rows["kernel"]} == {family}
    assert {names.family(each) for each in narrow["kernel"]} == {"align1, Turing"}


def test_odd_sides() -> None:
    table = microscope.odd(h100().products)
    left = (100 * table[["M", "N", "K"]].div(table["none"], axis=0)).round()
    said("fp32 loses next to nothing")
    assert left.loc["fp32"].min() >= 96
    said("In 16 bits 15 to 19 % are left, and in fp64, whose numbers have 8 bytes, 71 and 72.")
    halves = left.loc[["bf16", "fp16"], ["N", "K"]]
    assert (halves.min().min(), halves.max().max()) == (15, 19)
    assert left.loc["fp64", ["N", "K"]].tolist() == [71, 72]
    said("fp8 and int8 are refused")
    assert left.loc[["fp8", "int8"], ["N", "K"]].isna().all(axis=None)
    said("M is free of it, with 92 to 103 % left; where it costs more, as in TF32, the reason is")
    free = left.loc[["bf16", "fp16", "fp32", "fp64", "fp8"], "M"]
    assert (free.min(), free.max()) == (92, 103) and left.loc["tf32", "M"] < 70
    rows = h100().products.query("dtype == 'tf32' and n == 4096 and k == 4096").set_index("m")
    assert [record.tile(rows["kernel"][m]) for m in (4096, 4097)] == [(128, 256), (128, 128)]
    assert [given.waves(m, 4096, (256, 128), 132) for m in (4096, 4097)] == [4, 5]


def test_tiles_and_waves() -> None:
    said("of which an H100 has 132")
    assert gpus.summary().loc["H100", "sms"] == 132
    said("4,096 × 4,224 is four waves of tiles of 256 × 128, filled to the last.")
    assert 4096 * 4224 == 4 * 132 * 256 * 128
    said("(In kernels' names the columns come first: `128x256`.)")
    said("64 columns more are 1.5 % more work")
    assert round(100 * 64 / 4224, 1) == 1.5
    line = h100().line.set_index("n")
    said("At 4,288 the fifth wave would have 16 tiles; cuBLAS chose tiles of 192 × 192 instead")
    assert given.waves(4096, 4288, (256, 128), 132) == 5
    assert -(-4288 // 128) * (4096 // 256) - 4 * 132 == 16
    assert line.loc[[4224, 4288], "tile"].tolist() == ["128 x 256", "192 x 192"]
    said("and lost 14 % all the same")
    rate = line["tflop_per_s"]
    assert round(100 * (1 - rate[4288] / rate[4224])) == 14
    said("To the right a wave is one of many, and the teeth get smaller.")
    falls = -rate.pct_change()
    teeth = [falls.loc[a:b].max() for a, b in ((1024, 2200), (2200, 4400), (6600, 8192))]
    assert teeth == sorted(teeth, reverse=True)
    far = h100().far.set_index(["k", "n"])["tflop_per_s"]
    said("with K = 4,096, N = 256 reaches 321 TFLOP/s, and N = 4,096 reaches 762.")
    assert [round(far[4096, n]) for n in (256, 4096)] == [321, 762]
    said("Below, K is short: each number of the result is written after few multiplications")
    work, moved = 2 * 4096 * 4096 * 64, 2 * (2 * 4096 * 64 + 4096 * 4096)
    usual = roofline.recorded_ceilings("nvidia-h100")
    assert work / moved < usual.flop_per_s["bf16"] / usual.bytes_per_s


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
    said("That first convolution reached 40 TFLOP/s in bf16, 4 % of the data sheet.")
    assert round(bf16["tflop_per_s"]) == 40 and round(100 * bf16["tflop_per_s"] / 989) == 4
    said("Busy in 65 % of the cycles, for 4 % of the rate: five of the eight channels")
    assert round(100 * bf16["tensor_active"]) == 65 and 8 - 3 == 5
    table = microscope.beside_rule(h100().counters)
    by_case = table.set_index(["dtype", "n", "k"])
    said("They run, in a third of the cycles, for a fifth of the speed: Turing's instruction is")
    odd, even = by_case.loc[("bf16", 4096, 4097)], by_case.loc[("bf16", 4096, 4096)]
    assert abs(odd["tensor_active"] - 1 / 3) < 0.02
    assert abs(odd["tflop_per_s"] / even["tflop_per_s"] - 1 / 5) < 0.03
    assert "s1688" in odd["name"]
    said("Where your rule says 16 bytes, they are busy in 92 % of them or more (int8's kernel,")
    wide = table[(table["load"] == 16) & (table["dtype"] != "fp32")].set_index("dtype")
    assert round(100 * wide["tensor_active"].drop("int8").min()) == 92
    said("(int8's kernel, Ampere's: 73), and in fp32 never.")
    int8 = wide.loc["int8"]
    assert round(100 * int8["tensor_active"]) == 73 and "cutlass_80" in int8["name"]
    assert table.loc[table["dtype"] == "fp32", "tensor_active"].max() < 0.001
    said("Names, rule and counter agree.")
    products = h100().counters.query("what == 'product'")
    assert (products["tensor_active"].gt(0.1) == products["by_name"].eq("used")).all()
    for narrow in table[(table["load"] < 16) & (table["dtype"] != "fp32")].itertuples():
        assert narrow.tensor_active < 0.9 * wide["tensor_active"][narrow.dtype], narrow
    said("Three kernels that only pad take 39 % of the time.")
    rows = h100().counters.query("inputs == 65 and dtype == 'bf16' and layout == 'NHWC'")
    pad = rows["name"] == "nhwcAddPaddingKernel"
    assert pad.sum() == 3 and len(rows) == 4
    assert round(100 * rows.loc[pad, "us"].sum() / rows["us"].sum()) == 39


def test_from_cpp() -> None:
    cublas = h100().cublas
    said("an H100 multiplied fp32 with five pairs of them")
    fp32 = cublas[cublas["dtype"] == "fp32"]
    said("In all but the default. fp32 must be *allowed* to be rounded; each permission gave TF32")
    default = fp32["compute"].eq("COMPUTE_32F") & fp32["math"].eq("DEFAULT_MATH")
    assert len(fp32) == 5 and (fp32["tensor_cores"].eq("used") == ~default).all()
    assert fp32.loc[~default, "kernel"].str.contains("_tf32").all()
    said("16 bits need none, and only `COMPUTE_32F_PEDANTIC` sent them back to ordinary cores.")
    fp16 = cublas[cublas["dtype"] == "fp16"]
    assert fp16["tensor_cores"].eq("not").eq(fp16["compute"] == "COMPUTE_32F_PEDANTIC").all()
    said("Python adds nothing: its product in TF32 is as fast.")
    python = microscope.odd(h100().products)["none"]["tf32"]
    assert abs(fp32.loc[~default, "tflop_per_s"].max() / python - 1) < 0.03
    said("cuDNN's default rounds fp32 to TF32, and makes fp32 of fp16, for ordinary cores, until")
    cudnn = h100().cudnn.set_index(["dtype", "math"])
    usual = cudnn.loc[("fp32", "DEFAULT_MATH")]
    assert usual["kernel"].str.contains("_tf32").all() and len(usual) == 2
    halves = cudnn.loc[("fp16", "DEFAULT_MATH")]
    assert halves["kernel"].str.contains("f32f32_f32f32.*ffma").all() and len(halves) == 2
    assert cudnn.loc[("fp16", "TENSOR_OP_MATH"), "tensor_cores"].eq("used").all()
    said("until `TENSOR_OP_MATH` is set: 576 µs instead of 46")
    took = cudnn[cudnn["layout"] == "NHWC"]["us"].round()
    assert [took["fp16", math] for math in ("DEFAULT_MATH", "TENSOR_OP_MATH")] == [576, 46]
    # It is the GPU's time: the CPU, which asks for it, is not the slower one.
    assert (cudnn["us"] / cudnn["in_kernels_us"]).max() < 1.15


def test_the_ceiling() -> None:
    said("the data sheet's 989 TFLOP/s in bf16")
    assert gpus.summary().loc["H100", "fp16"] == 989
    bf16 = h100().largest.loc["bf16"]
    said("703 TFLOP/s in bf16, held for 1.6 s.")
    assert round(bf16["tflop_per_s"]) == 703 and measured.HELD_S == 1.6
    said("Section 3's map has up to 791, each over 0.01 s")
    assert round(h100().far["tflop_per_s"].max()) == 791 and {*h100().far["dtype"]} == {"bf16"}
    said("What is missing is mostly *clock*: the data sheet's 989 belong to 1,830 MHz")
    said("with its 700 watts the GPU holds 1,395")
    assert [row[2] for row in microscope.tables.GENERATIONS if row[1] == "H100"] == [1830]
    assert (bf16["watts"], bf16["mhz"]) == (700, 1395)
    said("That allows 754.")
    allowed = 989 * bf16["mhz"] / 1830
    assert round(allowed) == 754 and (989 - allowed) / (989 - bf16["tflop_per_s"]) > 0.8
    said("int8 is far below: its kernel is one of Ampere's.")
    int8 = h100().largest.loc["int8"]
    assert int8["share"] < 0.5 and "cutlass_80" in int8["kernel"]
    said("Bits that do not change take little power, so the clock stays high")
    assert bf16["zeros_watts"] < 0.8 * bf16["watts"] and bf16["zeros_mhz"] > 1.1 * bf16["mhz"]


def test_the_search_behind_the_ceiling() -> None:
    bf16 = h100().largest.loc["bf16"]
    tried = {name: load("nvidia-h100")["microscope"][f"largest_{name}"] for name in measured.SOUGHT}
    rates = [2e-6 * m * n * k / us for m, n, k, us in tried["bf16"]["tried"]]
    assert f"The best of {len(rates)} products in bf16 had {max(rates):.0f} TFLOP/s" in BEHIND
    assert "tried for 0.08 s, and 703 when it was held" in BEHIND and measured.TRY_S == 0.08
    assert "Four others came within 3 % of the best one's trial" in BEHIND
    assert sum(rate > 0.97 * max(rates) for rate in rates) == 5
    assert "in bf16, fp16 and TF32 the best is the fifth that was tried" in BEHIND
    for name in ("bf16", "fp16", "tf32"):
        one = tried[name]
        assert one["tried"][4][:3] == [one["m"], one["n"], one["k"]]
    assert "0.01 to 0.02 s a product, 122 are above 703" in BEHIND
    maps = [h100().near, h100().far, h100().line, h100().products.query("dtype == 'bf16'")]
    assert sum((each["tflop_per_s"] > bf16["tflop_per_s"]).sum() for each in maps) == 122
    assert "With normal numbers the GPU then had 74 to 77 °C." in BEHIND
    heat = [one["normal"]["celsius"] for one in tried.values()]
    assert (min(heat), max(heat)) == (74, 77)
    assert "Batches differ by 1 to 3 % (interquartile range), in int8 and fp64 by 8." in BEHIND
    spread = {
        name: 100 * one["normal"]["iqr_us"] / one["normal"]["us"] for name, one in tried.items()
    }
    assert round(spread.pop("int8")) == round(spread.pop("fp64")) == 8
    assert {round(each) for each in spread.values()} == {1, 2, 3}
    assert "With zeros, where power does not hold the clock, it is less than 0.2 %" in BEHIND
    assert all(one["zeros"]["iqr_us"] < 0.002 * one["zeros"]["us"] for one in tried.values())
    assert "with zeros in bf16 the GPU stays at 1,710 MHz and 453 of its 700 W" in BEHIND
    assert (bf16["zeros_mhz"], bf16["zeros_watts"]) == (1710, 453)
    assert "where int8, fp64 and fp32 go up to 1,980 MHz" in BEHIND
    assert h100().largest.loc[["int8", "fp64", "fp32"], "zeros_mhz"].eq(1980).all()


def test_spreads() -> None:
    assert "between 737 and 781 TFLOP/s in four places of the record" in BEHIND
    seen = h100()
    plain = seen.products.query("dtype == 'bf16' and stored == 'NN'")
    four = pd.concat([plain, seen.near, seen.far, seen.line]).query("m == n == k == 4096")
    rates = four["tflop_per_s"].round()
    assert (len(four), rates.min(), rates.max()) == (4, 737, 781)
    assert "among the fast products a difference of 6 % says nothing" in BEHIND
    assert round(100 * (rates.max() / rates.min() - 1)) == 6
    assert "with a range of less than 0.7 % in each" in BEHIND
    assert (four["iqr_us"] / four["us"]).max() < 0.007
    assert "without a pause, for 0.08 s, it reached 657" in BEHIND
    tried = load("nvidia-h100")["microscope"]["largest_bf16"]["tried"]
    (us,) = [us for *sides, us in tried if sides == [4096, 4096, 4096]]
    assert round(2e-6 * 4096**3 / us) == 657
    assert (
        "in the median 0.4 % where a call takes 0.1 ms or more, and 5 % where it takes less"
        in BEHIND
    )
    tables = [seen.products, seen.convolutions, seen.near, seen.far, seen.line]
    calls = pd.concat([*tables, seen.cublas, seen.cudnn])
    spread = 100 * calls["iqr_us"] / calls["us"]
    assert round(spread[calls["us"] >= 100].median(), 1) == 0.4
    assert round(spread[calls["us"] < 20].median()) == 5


def test_products_that_the_rule_does_not_tell() -> None:
    fast = h100().near.query("n % 8 == 0 and k % 8 == 0").set_index(["n", "k"])
    assert (
        "N = 4,104 and K = 4,088 or 4,104 reach 575 and 569 TFLOP/s, the others at least 726"
        in BEHIND
    )
    rate = fast["tflop_per_s"].round()
    slow = [(4104, 4088), (4104, 4104)]
    assert rate[slow].tolist() == [575, 569] and rate.drop(slow).min() == 726
    assert "takes `nvjet…128x256…1x2_h` for N = 4,104 and `…2x1_v` for N = 4,088" in BEHIND
    for n, how in ((4104, "1x2_h"), (4088, "2x1_v")):
        assert fast.loc[n, "kernel"].str.contains(f"nvjet.*128x256.*{how}").all()


@pytest.mark.slow
def test_the_roofline() -> None:
    said("The lower roof changes nothing for these runs: all but fp32's are held by")
    usual, found = roofline.recorded_ceilings("nvidia-h100"), microscope.ceilings()
    assert usual.bytes_per_s == found.bytes_per_s
    assert abs(found.flop_per_s["fp32"] / usual.flop_per_s["fp32"] - 1) < 0.005
    runs = recorded("nvidia-h100")
    runs = runs[runs["batch_size"].eq(256)]
    before, after = (roofline.points(runs, each) for each in (usual, found))
    assert (after["share"] - before["share"]).abs().max() < 0.002
    assert after.loc[after["precision"] != "fp32", "nearer"].eq("memory").all()


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
