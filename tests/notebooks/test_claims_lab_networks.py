"""The lab of three networks says what is counted, what was published, and what was recorded."""

from functools import cache

import pandas as pd
from claims import text_of

from course.runs.run import PROJECT
from course.topics import gpus, networks
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
    said("on the A100 3D U-Net became 8.2 times as fast in fp16")
    assert round(ratios.loc[("unet3d", "A100"), "fp16"], 1) == 8.2


def test_behind_the_lab() -> None:
    page = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split())
    table = counted()
    assert "2,860 GFLOP and 23.8 GB in 16 bits" in page
    assert round(table.loc["unet3d", "gflop"]) == 2860
    assert round(table.loc["unet3d", "megabytes_half"] / 1e3, 1) == 23.8
    assert "a quarter of 3D U-Net's bytes are copies" in page
    assert round(cost.moved_by("unet3d")["copies"], 2) in (0.25, 0.26)
