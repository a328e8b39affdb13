"""Narrow versions of the benchmark's three networks, which need a hundredth of the time."""

from dataclasses import replace

import torchvision
from narrow import Narrow

from electives.networks import ssd
from electives.networks.catalogue import NETWORKS, Network
from labs.memory import unet3d

CLASSES = 1000  # of synthetic labels


def small_ssd() -> ssd.SSD300:
    """Create SSD300 with all 8,732 boxes, from a narrow ResNet of four blocks."""
    get_model = torchvision.models.get_model
    torchvision.models.get_model = lambda *_, **__: Narrow(CLASSES, [1] * 4)
    try:
        return ssd.SSD300()
    finally:
        torchvision.models.get_model = get_model


def small() -> dict[str, Network]:
    """Return the narrow networks by name, as NETWORKS."""
    return {
        "ssd300": replace(NETWORKS["ssd300"], build=small_ssd),
        "unet3d": replace(
            NETWORKS["unet3d"],
            build=lambda: unet3d.UNet3D(widths=(4, 8, 8)),
            px=16,
        ),
        "resnet50": replace(NETWORKS["resnet50"], build=lambda: Narrow(CLASSES), px=32),
    }
