"""What others reached, with sources: how far one can go."""

from __future__ import annotations

from typing import NamedTuple


class Anchor(NamedTuple):
    """A published training: what it reached, on what, in which time, with how much energy."""

    what: str
    target: str
    machine: str
    time: str
    energy: str
    source: str


ANCHORS = (
    Anchor(
        "MLPerf Training v4.0, ResNet-50 on ImageNet",
        "75.9 %",
        "8 × H100",
        "13.27 min",
        "5.48 MJ for the whole node in another submission, of 13.36 min: 0.122 J an image",
        "https://github.com/mlcommons/training_results_v4.0",
    ),
    Anchor(
        "FFCV, ResNet-50 on ImageNet",
        "75.6 %",
        "8 × A100",
        "21.7 min",
        "not published",
        "https://github.com/libffcv/ffcv-imagenet",
    ),
    Anchor(
        "airbench, a small network on CIFAR-10",
        "94 %",
        "1 × A100",
        "2.59 s",
        "not published",
        "https://github.com/KellerJordan/cifar10-airbench",
    ),
)
