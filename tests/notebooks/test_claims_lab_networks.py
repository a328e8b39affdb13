"""The lab of three networks says what is counted, what was published, and what was recorded."""

import json
import re
from functools import cache

import pandas as pd
import pytest
from claims import text_of

from course.runs import recordings
from course.runs.run import PROJECT
from course.topics import gpus, networks, roofline
from course.topics.networks import cost, measured, ssd, unet3d
from course.topics.networks.bench import LAYOUTS
from course.topics.networks.measured import BATCHES
from course.topics.roofline.bounds import Ceilings

TEXT = text_of("lab_networks")
A100_TB_PER_S = 1.555  # of the one with 40 GB, whose table the published report gives


def said(words: str) -> None:
    assert words in TEXT, words


@cache
def counted() -> pd.DataFrame:
    return networks.networks()


def published(network: str, gpu: str, precision: str) -> pd.Series:
    table = networks.published.table().set_index(["network", "gpu", "precision"])
    return table.loc[(network, gpu, precision)]


@pytest.mark.slow
def test_what_networks_are() -> None:
    said("for each of 8,732 boxes")
    assert len(ssd.default_boxes()) == 8732
    said("each of its 128 × 128 × 128 voxels")
    assert unet3d.VOXELS == 128
    said("3D U-Net has the same 31.2 million parameters, SSD300 4 % more than the 22")
    said('ResNet-50 11 % more than "over 23", as its last layer has 2 million')
    table = counted()
    assert round(table.loc["unet3d", "million_parameters"], 1) == 31.2
    assert table["differs"].round().to_dict() == {"ssd300": 4, "unet3d": 0, "resnet50": 11}
    assert round((2048 + 1) * 1000 / 1e6) == 2
    said("A volume takes 118 times the operations, and [48 times the bytes]")
    volume, image = table.loc["unet3d"], table.loc["resnet50"]
    assert round(volume["gflop"] / image["gflop"]) == 118
    assert round(volume["megabytes_half"] / image["megabytes_half"]) == 48
    said("So it has more to compute for each byte")
    assert volume["flop_per_byte_half"] > 2 * image["flop_per_byte_half"]


def test_what_was_published() -> None:
    steps = networks.published.images_a_step()
    said("With 200 iterations all rows agree: 32, 2, and 64")
    for network, batch in (("ssd300", 32), ("unet3d", 2), ("resnet50", 64)):
        own = steps[steps["network"] == network]
        assert (own["by_200"] / batch - 1).abs().max() < 0.015
    said("batch 32, 2 and 512; 100 timed iterations on the A100, and 200 on the others")
    assert set(steps["batch_said"]) == {32, 2, 512}
    assert set(steps.loc[steps["gpu"] == "A100", "iterations_said"]) == {100}
    assert set(steps.loc[steps["gpu"] != "A100", "iterations_said"]) == {200}
    said("512 images in fp32 would not fit into a P100's 16 GB")
    assert gpus.summary().loc["P100", "memory_gb"] == 16
    said("a P100 computes fp16 at twice its fp32, and SSD300 is said to gain 5.5 times")
    assert gpus.summary().loc["P100", "fp16"] == 2 * gpus.summary().loc["P100", "fp32"]
    ratios = networks.published.ratios()
    assert round(ratios.loc[("ssd300", "P100"), "fp16"], 1) == 5.5
    said("Its fp32 row, 10.8 images a second")
    assert round(published("ssd300", "P100", "fp32")["images_per_s"], 1) == 10.8
    said("SSD300's fastest row was busy for 24 % of the time")
    assert round(published("ssd300", "A100", "fp16")["gpu_busy"]) == 24
    said("So 4.35 times is what *that program* gained")
    assert round(ratios.loc[("ssd300", "A100"), "fp16"], 2) == 4.35


@cache
def h100() -> pd.DataFrame:
    return networks.recorded("nvidia-h100")


def row(
    network: str, batch: int, precision: str, layout: str = "contiguous", compiled: bool = False
) -> pd.Series:
    """Of training on random images."""
    rows = h100().query("network == @network and batch == @batch and precision == @precision")
    rows = rows[(rows["mode"] == "train") & (rows["data"] == "synthetic")]
    rows = rows[(rows["layout"] == layout) & (rows["compile"] == compiled)]
    assert len(rows) == 1
    return rows.iloc[0]


def fp16(network: str, layout: str = "channels_last", compiled: bool = False) -> pd.Series:
    return row(network, networks.pictures.NETWORKS[network].batch_size, "fp16", layout, compiled)


def test_it_is_short_enough() -> None:
    assert len(re.sub(r"[`*|#\[\]()$>-]", " ", TEXT).split()) <= 2000


def test_what_can_become_faster() -> None:
    gains = networks.gains(h100())
    at_most = gains["at_most"].round(1)
    said("It is 12.6 for 3D U-Net, 4.6 for SSD300, and 3.2 to 3.5 for ResNet-50")
    assert at_most.loc[[("unet3d", 2), ("ssd300", 32)]].tolist() == [12.6, 4.6]
    assert sorted(at_most.loc["resnet50"]) == [3.2, 3.5]
    said("The published A100 gained 8.2, 4.35 and 2.26 times in fp16.")
    said("The same order, and each below its limit")
    theirs = gains["fp16_a100"].groupby("network").first()
    assert theirs[["unet3d", "ssd300", "resnet50"]].round(2).tolist() == [8.2, 4.35, 2.26]
    assert (gains["fp16_a100"] < gains["at_most"]).all()
    ranks = gains[["at_most", "fp16_a100"]].groupby("network").min().rank()
    assert ranks["at_most"].tolist() == ranks["fp16_a100"].tolist()


def test_tf32() -> None:
    ssd300, resnet = row("ssd300", 32, "tf32"), row("resnet50", 256, "tf32")
    said(
        "In fp32 no kernel runs on Tensor Cores; with TF32 they have 38 % of SSD300's time, and 28"
    )
    fp32 = h100()[(h100()["precision"] == "fp32") & (h100()["mode"] == "train")]
    assert fp32["tensor_core_share"].max() == 0
    shares = [ssd300["tensor_core_share"], resnet["tensor_core_share"]]
    assert [round(share, 2) for share in shares] == [0.38, 0.28]
    said("Both steps became shorter, by 2.24 and 1.89 times")
    assert [round(each["against_fp32"], 2) for each in (ssd300, resnet)] == [2.24, 1.89]
    said("normalisation grew from 19 % to 36 % of ResNet-50's")
    before = row("resnet50", 256, "fp32")["kinds"]["normalisation"]
    assert (round(before, 2), round(resnet["kinds"]["normalisation"], 2)) == (0.19, 0.36)
    said("Products *elsewhere* are still 13 % there: kernels that rewrite activations")
    elsewhere = resnet["kinds"]["products"] - resnet["tensor_core_share"]
    assert round(elsewhere, 2) == 0.13 and resnet["layout_share"] > 0.95 * elsewhere


def test_who_waits_for_whom() -> None:
    ssd300, resnet = fp16("ssd300"), fp16("resnet50")
    said("In fp16 with `channels_last` a step of SSD300 took 44.8 ms")
    said("In fp16 with channels last it works for 24.4 ms of the 44.8")
    assert [round(1e3 * ssd300[each], 1) for each in ("step_s", "busy_s")] == [44.8, 24.4]
    said("In fp32 it always has work")
    fp32 = h100()[(h100()["precision"] == "fp32") & (h100()["mode"] == "train")]
    assert fp32["busy"].min() > 0.97
    said("The compiler shortens the work, and SSD300's GPU waits all the same")
    compiled = fp16("ssd300", compiled=True)
    assert compiled["busy_s"] < 0.9 * ssd300["busy_s"] and compiled["busy"] < 0.6
    said("it is 4,416 images a second, where 2,302 were reached")
    assert [round(resnet[each]) for each in ("at_work_per_s", "images_per_s")] == [4416, 2302]
    said("a CUDA graph, by which a host asks for a whole step at once, [reached 4,373]")
    explored = (PROJECT / "benchmarks/fast_step/explored_h100.jsonl").read_text().splitlines()
    found = {each["name"]: each for each in map(json.loads, explored) if "name" in each}
    graph = found["eager_fp16_graph_batch_64"]
    assert (graph["batch"], graph["dtype"], round(graph["images_per_s"])) == (64, "fp16", 4373)
    said("With 256 images ResNet-50 has work for 94 % of its step")
    large = row("resnet50", 256, "fp16", "channels_last")
    assert round(large["busy"], 2) == 0.94


def test_beside_what_was_published() -> None:
    beside = networks.beside(h100(), "H100")
    ratios = networks.published.ratios(beside)["fp16"].unstack("gpu")
    names = ["unet3d", "ssd300", "resnet50"]
    said("In fp16, 3D U-Net was 8.2 times as fast as in fp32, on the A100")
    assert round(ratios.loc["unet3d", "A100"], 1) == 8.2
    said("The order is the published one")
    for gpu in ("H100", "H100, at work", "A100"):
        assert ratios[gpu].sort_values(ascending=False).index.tolist() == names
    said("Each *speed* is above the A100's, and yet 3D U-Net's and SSD300's *ratios* are below")
    wide = beside.unstack("gpu").swaplevel(axis=1)
    assert (wide["H100"] > wide["A100"]).all(axis=None)
    below = ratios["H100, at work"] < ratios["A100"]
    assert below[below].index.tolist() == ["ssd300", "unet3d"]
    said("3D U-Net's fp32 became 2.5 times as fast from A100 to H100, its fp16 1.8 times")
    became = wide["H100"] / wide["A100"]
    assert became.loc["unet3d", ["fp32", "fp16"]].round(1).tolist() == [2.5, 1.8]
    said(
        "ordinary cores, which gained 3.4 times by data sheet, and fp16 for memory, which gained 2"
    )
    table = gpus.summary()
    assert round(table.loc["H100", "fp32"] / table.loc["A100", "fp32"], 1) == 3.4
    assert round(table.loc["H100", "tb_per_s"] / A100_TB_PER_S, 1) == 2.2
    said("ResNet-50 reached 2.29 times, the A100 2.26. Its work alone would allow 2.95")
    of = ratios.loc["resnet50", ["H100", "A100", "H100, at work"]]
    assert of.round(2).tolist() == [2.29, 2.26, 2.95]


@pytest.mark.slow
def test_what_each_waits_for_on_both_gpus() -> None:
    """Section 7: fp32 for ordinary cores, fp16 for memory; and the page: how much that allows."""
    found = {}
    table = gpus.summary().loc[["A100", "H100"]]
    table.loc["A100", "tb_per_s"] = A100_TB_PER_S
    for name, each in table.iterrows():
        ceilings = Ceilings(name, 1e12 * each[["fp32", "fp16"]], 1e12 * each["tb_per_s"], "")
        limits = networks.bounds(ceilings).set_index(["network", "precision"])
        nearer = limits["nearer"].loc["unet3d"].to_dict()
        assert nearer == {"fp32": "arithmetic", "fp16": "memory"}
        lower = limits[["arithmetic", "memory"]].min(axis=1).unstack()
        found[name] = (lower["fp16"] / lower["fp32"]).round(1)
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    assert "9.6 times for 3D U-Net on that A100 and 6.0 on an H100, 6.7 and 4.2 for SSD300" in page
    assert "3.9 and 2.4 for ResNet-50" in page
    for network, both in {
        "unet3d": (9.6, 6.0),
        "ssd300": (6.7, 4.2),
        "resnet50": (3.9, 2.4),
    }.items():
        assert tuple(found[gpu][network] for gpu in ("A100", "H100")) == both


@pytest.mark.slow
def test_what_a_machine_allows() -> None:
    limits = networks.bounds(roofline.recorded_ceilings("nvidia-h100"))
    limits = limits.set_index(["network", "precision"])
    said("With TF32 the limit changes: from arithmetic to memory")
    nearer = limits["nearer"].unstack()
    assert (nearer["fp32"] == "arithmetic").all() and (nearer["tf32"] == "memory").all()
    said("SSD300 then reaches half of what the memory allows, ResNet-50 60 %")
    said("3D U-Net in fp32 reaches 29 % of the arithmetic, less than the others")

    def reached(network: str, batch: int, precision: str) -> float:
        limit = limits.loc[(network, precision)]
        return row(network, batch, precision)["images_per_s"] / limit[limit["nearer"]]

    assert round(reached("ssd300", 32, "tf32"), 2) == 0.5
    assert round(reached("resnet50", 256, "tf32"), 2) == 0.6
    said("their work alone would reach 62 % and, with 256 images, 83 %")
    alone = [fp16("ssd300"), row("resnet50", 256, "fp16", "channels_last")]
    memory = limits.xs("fp16", level="precision")["memory"]
    shares = [each["at_work_per_s"] / memory[each["network"]] for each in alone]
    assert [round(share, 2) for share in shares] == [0.62, 0.83]
    unet = reached("unet3d", 2, "fp32")
    others = [reached(*each, "fp32") for each in (("ssd300", 32), ("resnet50", 64))]
    assert round(unet, 2) == 0.29 and unet < 0.75 * min(others)
    said("One kernel takes 48 % of its time")
    said("The other three are written for a generation of GPUs, `sm80`; this one is not.")
    longest, *others = row("unet3d", 2, "fp32")["kernels"]
    assert "wgrad" in longest["kernel"] and "sm80" not in longest["kernel"]
    assert ["sm80" in each["kernel"] for each in others] == [True] * 3
    assert round(longest["share"], 2) == 0.48 and longest["verdict"] == "not"


def test_layouts_and_the_compiler() -> None:
    brings = networks.layouts(h100())
    said("Channels last makes the work of ResNet-50 and SSD300 1.65 and 1.57 times as fast")
    assert brings["layout_brings"].round(2).tolist()[:2] == [1.65, 1.57]
    assert brings.index.tolist() == ["resnet50", "ssd300", "unet3d"]
    said(": hardly anything is rewritten")
    for name in ("resnet50", "ssd300"):
        before, after = (fp16(name, layout)["layout_share"] for layout in LAYOUTS)
        assert before > 0.14 and after < 0.02
    said("3D U-Net's takes longer, as copies grow from 1 % to 36 %")
    assert brings.loc["unet3d", "layout_brings"] < 0.75
    copies = [fp16("unet3d", layout)["kinds"]["copies"] for layout in LAYOUTS]
    compiled = fp16("unet3d", compiled=True)
    assert [round(each, 2) for each in copies] == [0.01, 0.36]
    said("Compiled, copies are 12 %, and it is 9.1 times as fast as fp32")
    assert round(compiled["kinds"]["copies"], 2) == 0.12
    assert round(compiled["work_against_fp32"], 1) == 9.1
    said("bf16 stays behind fp16 in all three: for its normalisation PyTorch takes kernels of its")
    for name, batch in BATCHES:
        for layout in LAYOUTS:
            half, brain = (row(name, batch, each, layout) for each in ("fp16", "bf16"))
            assert half["at_work_per_s"] > 1.1 * brain["at_work_per_s"]
            assert norm_kernels(half) == {"cudnn"} and norm_kernels(brain) == {"at::native"}


def norm_kernels(of: pd.Series) -> set[str]:
    """Whose they are, of the longest kernels of a step."""
    names = [each["kernel"] for each in of["kernels"]]
    norms = [name for name in names if re.search(r"batch_?norm|bn_(fw|bw)", name)]
    return {"cudnn" if "cudnn" in name else "at::native" for name in norms}


def test_inference() -> None:
    table = networks.inference(h100())
    said("all three come to 3.1 or 3.2 in fp16, contiguous")
    assert set(table["fp16 contiguous"].round(1)) == {3.1, 3.2}
    said("3D U-Net in fp32 stands out with 5.7")
    assert round(table.loc["unet3d", "fp32 contiguous"], 1) == 5.7
    assert table["fp32 contiguous"].drop("unet3d").max() < 3.5


def test_from_files() -> None:
    files = networks.from_files(h100())
    said("101 % and 97 %: the loader keeps up")
    assert files["kept"].round(2).to_dict() == {"ssd300": 1.01, "unet3d": 0.97}
    said("with ten workers, how many percent")
    assert set(files["workers"]) == {10}
    said("If it did not, 1,310 images would have to come each second, not 725")
    assert round(fp16("ssd300")["at_work_per_s"]) == 1310
    assert round(files.loc["ssd300", "photographs"]) == 725


def test_two_gpus() -> None:
    two = networks.scaling("nvidia-h100-x2")
    of = {name: two.loc[(name, batch, 2)] for name, batch in BATCHES}
    said("102 MB a step of ResNet-50, 92 of SSD300, 125 of 3D U-Net")
    assert [round(each["megabytes"]) for each in of.values()] == [102, 92, 125]
    said("3D U-Net sends most, and reaches 99 %: its messages take 0.6 ms")
    assert round(of["unet3d"]["efficiency"], 2) == 0.99
    assert two["efficiency"].xs(2, level="gpus").idxmax() == ("unet3d", 2)
    assert round(1e3 * of["unet3d"]["nccl_s"], 1) == 0.6
    said("ResNet-50's kernels of NCCL take 19 ms with 64 images")
    assert round(1e3 * of["resnet50"]["nccl_s"]) == 19
    said("Each GPU computes for 14.8 ms, alone for 14.4")
    alone, both = (two.loc[("resnet50", 64, gpus), "computing_s"] for gpus in (1, 2))
    assert (round(1e3 * both, 1), round(1e3 * alone, 1)) == (14.8, 14.4)
    said("Larger batches help here, too: 92 and 95 %")
    large = [two.loc[each, "efficiency"] for each in (("resnet50", 256, 2), ("ssd300", 128, 2))]
    assert [round(each, 2) for each in large] == [0.92, 0.95]
    assert max(of[name]["efficiency"] for name in ("resnet50", "ssd300")) < 0.8


def test_a_second_measurement() -> None:
    """The page of asides: what the host decides changes, and what the GPU works does not."""
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    again = pd.DataFrame(recordings.load("nvidia-h100")["networks"]["again"])
    assert "Four rows were measured a second time" in page and len(again) == 4
    first = [
        row(each.network, each.batch, each.precision, each.layout) for each in again.itertuples()
    ]
    first = pd.DataFrame(first).reset_index(drop=True)
    speeds = again["images_per_s"] / first["images_per_s"]
    assert "Their speeds came out 24 % lower to 31 % higher" in page
    assert (round(speeds.min(), 2), round(speeds.max(), 2)) == (0.76, 1.31)
    assert "the seconds of work changed by less than 1 %" in page
    assert (again["busy_s"] / first["busy_s"] - 1).abs().max() < 0.01
    assert "SSD300 in bf16 with channels last is the row that waited least of the four" in page
    assert first["busy"].idxmax() == 3 and tuple(again.loc[3, ["network", "precision"]]) == (
        "ssd300",
        "bf16",
    )
    assert "1,072 images/s, and the second time reached 813" in page
    assert [round(each.loc[3, "images_per_s"]) for each in (first, again)] == [1072, 813]
    third = measured.recorded_together("nvidia-h100-x2")
    third = third.query("network == 'ssd300' and batch == 32 and gpus == 1").iloc[0]
    assert "reached 1,058 where 715 stand in the table" in page
    assert "its work took 24.4 ms as well" in page
    assert [round(each["images_per_s"]) for each in (third, first.loc[1])] == [1058, 715]
    assert [round(1e3 * each["busy_s"], 1) for each in (third, first.loc[1])] == [24.4, 24.4]
    assert "A step took 14.6 ms there, the work alone 14.5 here" in page
    assert (round(64e3 / 4373.2, 1), round(1e3 * first.loc[0, "busy_s"], 1)) == (14.6, 14.5)
    assert f"One process measured {len(h100())} settings" in page


@pytest.mark.slow
def test_behind_the_lab() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    table = counted()
    assert "2,860 GFLOP and 23.8 GB in 16 bits" in page
    assert round(table.loc["unet3d", "gflop"]) == 2860
    assert round(table.loc["unet3d", "megabytes_half"] / 1e3, 1) == 23.8
    table = gpus.summary()
    assert "67 TFLOP/s and 3.35 TB/s are 20 FLOP a byte, the 40 GB A100's 19.5 and 1.555" in page
    assert table.loc["H100", ["fp32", "tb_per_s"]].tolist() == [67, 3.35]
    assert table.loc["A100", ["fp32", "tb_per_s"]].tolist() == [19.5, 2.04]
    assert (round(67 / 3.35), round(19.5 / A100_TB_PER_S, 1)) == (20, 12.5)


@pytest.mark.slow
def test_why_channels_last_may_cost() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    assert "64 copies of 3D U-Net's step are `clone` instead of 22" in page
    assert "a volume moves 10 % more bytes" in page
    assert "ResNet-50, with BatchNorm, moves the same bytes in both layouts" in page
    # In fp32, because a CPU without units for bf16 has other kernels, which do not keep the layout.
    plain, last = (
        {name: cost.operators(name, "fp32", layout=layout) for name in ("unet3d", "resnet50")}
        for layout in ("contiguous", "channels_last")
    )
    clones = [each["unet3d"].set_index("operator").loc["clone", "calls"] for each in (plain, last)]
    assert clones == [22, 64]
    ratios = {name: last[name]["megabytes"].sum() / plain[name]["megabytes"].sum() for name in last}
    assert round(ratios["unet3d"], 2) == 1.10 and round(ratios["resnet50"], 3) == 1
