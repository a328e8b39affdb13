"""The lab of three networks says what is counted, what was published, and what was recorded."""

from functools import cache

import pandas as pd
import pytest
from claims import text_of

from course.runs.run import PROJECT
from course.topics import gpus, networks, roofline
from course.topics.networks import cost, ssd, unet3d

TEXT = text_of("lab_networks")


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


def row(network: str, batch: int, precision: str) -> pd.Series:
    rows = h100().query("network == @network and batch == @batch and precision == @precision")
    rows = rows[(rows["mode"] == "train") & (rows["layout"] == "contiguous") & ~rows["compile"]]
    return rows.iloc[0]


def test_what_can_become_faster() -> None:
    gains = networks.gains(h100())
    at_most = gains["at_most"].round(1)
    said("It is 12.5 for 3D U-Net, 4.6 for SSD300, and 3.2 to 3.5 for ResNet-50")
    assert at_most.loc[[("unet3d", 2), ("ssd300", 32)]].tolist() == [12.5, 4.6]
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
    said("Both steps became shorter, by 2.24 and 1.87 times")
    assert [round(each["against_fp32"], 2) for each in (ssd300, resnet)] == [2.24, 1.87]
    said("normalisation grew from 19 % to 36 % of ResNet-50's")
    before = row("resnet50", 256, "fp32")["kinds"]["normalisation"]
    assert (round(before, 2), round(resnet["kinds"]["normalisation"], 2)) == (0.19, 0.36)
    said("Products *elsewhere* are still 13 % there: kernels that rewrite activations")
    elsewhere = resnet["kinds"]["products"] - resnet["tensor_core_share"]
    assert round(elsewhere, 2) == 0.13 and resnet["layout_share"] > 0.95 * elsewhere


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
    unet = reached("unet3d", 2, "fp32")
    others = [reached(*each, "fp32") for each in (("ssd300", 32), ("resnet50", 64))]
    assert round(unet, 2) == 0.29 and unet < 0.75 * min(others)
    said("One kernel takes 48 % of its time")
    said("The other three are written for a generation of GPUs, `sm80`; this one is not.")
    longest, *others = row("unet3d", 2, "fp32")["kernels"]
    assert "wgrad" in longest["kernel"] and "sm80" not in longest["kernel"]
    assert ["sm80" in each["kernel"] for each in others] == [True] * 3
    assert round(longest["share"], 2) == 0.48 and longest["verdict"] == "not"


@pytest.mark.slow
def test_behind_the_lab() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    table = counted()
    assert "2,860 GFLOP and 23.8 GB in 16 bits" in page
    assert round(table.loc["unet3d", "gflop"]) == 2860
    assert round(table.loc["unet3d", "megabytes_half"] / 1e3, 1) == 23.8
    table = gpus.summary()
    assert "67 TFLOP/s and 3.35 TB/s are 20 FLOP a byte, an A100's 19.5 and 2.04 are 9.6" in page
    assert table.loc["H100", ["fp32", "tb_per_s"]].tolist() == [67, 3.35]
    assert table.loc["A100", ["fp32", "tb_per_s"]].tolist() == [19.5, 2.04]
    assert (round(67 / 3.35), round(19.5 / 2.04, 1)) == (20, 9.6)
    assert "a quarter of 3D U-Net's bytes are copies" in page
    assert round(cost.moved_by("unet3d")["copies"], 2) in (0.25, 0.26)


@pytest.mark.slow
def test_why_channels_last_may_cost() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    assert "64 copies of 3D U-Net's step are `clone` instead of 22" in page
    assert "a volume moves 10 % more bytes" in page
    assert "ResNet-50, with BatchNorm, moves the same bytes in both layouts" in page
    plain, last = (
        {name: cost.operators(name, "bf16", layout=layout) for name in ("unet3d", "resnet50")}
        for layout in ("contiguous", "channels_last")
    )
    clones = [each["unet3d"].set_index("operator").loc["clone", "calls"] for each in (plain, last)]
    assert clones == [22, 64]
    ratios = {name: last[name]["megabytes"].sum() / plain[name]["megabytes"].sum() for name in last}
    assert round(ratios["unet3d"], 2) == 1.10 and round(ratios["resnet50"], 3) == 1
