"""One network for images and for volumes: its memory on fake tensors, and a check of the lab's sum.

The network is the 3D U-Net of the elective on networks, with convolutions of two or three
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn

from course.lab import results
from labs.memory.unet3d import WIDTHS, UNet3D
from trainspeed import memory
from trainspeed.fake_gpu import fake_tensors

MULTIPLE = 2 ** (len(WIDTHS) - 1)  # sides must be multiples of it
Layers = list[tuple[int, int]]  # (channels, stride) of each output
# Batch, side and dimensions for which a function is compared with fake tensors.
CASES = ((1, 64, 2), (1, 64, 3), (2, 64, 3))


def activation_gib(layers: Layers, batch: int, side: int, dims: int) -> float:
    """Return the GiB that outputs of layers take in fp32: the solution of the lab's exercise."""
    numbers = 0
    for channels, stride in layers:
        numbers += batch * channels * (side // stride) ** dims
    return numbers * 4 / 2**30


@cache
def saved_outputs() -> Layers:
    """Return (channels, stride) of each tensor that the network saves for backward.

    A stride of 4 means a quarter of the input's side. Statistics of channels are left out.
    """
    side, dims = 2 * MULTIPLE, 2  # channels and strides are the same in three dimensions
    tensors = _saved_tensors(dims, side, batch=1)
    maps = [tensor.shape for tensor in tensors if tensor.dim() == dims + 2]
    return [(shape[1], side // shape[-1]) for shape in maps]


@cache
def unet_memory(dims: int, side: int, batch: int = 1, inplace: bool = True) -> tuple[float, float]:
    """Predict the memory of a training step in fp32, with SGD and momentum.

    Args:
        dims: 2 for images, 3 for volumes.
        inplace: whether ReLU overwrites its input.

    Returns:
        GiB of what is saved for backward, and of the peak.

    Raises:
        ValueError: the side is not a multiple of `MULTIPLE`, or too small.
    """
    if side % MULTIPLE or side < 2 * MULTIPLE:
        raise ValueError(f"side={side}: expected a multiple of {MULTIPLE}, at least {2 * MULTIPLE}")
    tensors = _saved_tensors(dims, side, batch, inplace)
    saved = sum(tensor.untyped_storage().nbytes() for tensor in tensors) / 2**30
    with _fake_step(dims, side, batch, inplace) as step:
        return saved, memory.predict_step(step).peak_gib


@contextmanager
def _fake_step(dims: int, side: int, batch: int, inplace: bool) -> Iterator[memory.FakeStep]:
    """Create the network and its batch, to be used inside this context; nothing is computed."""
    with torch.device("meta"):
        model = UNet3D(dims=dims)
        images = torch.empty(batch, 1, *[side] * dims)
        labels = torch.zeros(batch, *[side] * dims, dtype=torch.long)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = inplace
    loss = nn.functional.cross_entropy
    with fake_tensors():
        yield memory.FakeStep(model, images, targets=labels, loss=loss, optimizer="sgd")


def _saved_tensors(dims: int, side: int, batch: int, inplace: bool = True) -> list[torch.Tensor]:
    """Return what a forward pass saves for backward, except weights and labels."""
    with _fake_step(dims, side, batch, inplace) as step:
        return memory.saved_tensors(step.forward, (*step.model.parameters(), step.targets))


# Formulas with one mistake each, and what to tell a learner who made it.
MISTAKES: dict[str, Callable[[int, int, int, int, int], float]] = {
    "the batch is not counted: every image of a batch has its own outputs": (
        lambda batch, channels, stride, side, dims: 4 * channels * (side // stride) ** dims
    ),
    "the stride is not counted: a layer of stride 2 has outputs of half the side": (
        lambda batch, channels, stride, side, dims: 4 * batch * channels * side**dims
    ),
    "the stride shortens *each* side of an output, not only one": (
        lambda batch, channels, stride, side, dims: 4 * batch * channels * side**dims / stride
    ),
    "volumes are counted like images: use `dims` as the exponent": (
        lambda batch, channels, stride, side, dims: 4 * batch * channels * (side // stride) ** 2
    ),
    "images are counted like volumes: use `dims` as the exponent": (
        lambda batch, channels, stride, side, dims: 4 * batch * channels * (side // stride) ** 3
    ),
    "an output has `dims` sides of equal length: expected a power of the side, not a multiple": (
        lambda batch, channels, stride, side, dims: 4 * batch * channels * (side // stride) * dims
    ),
    "numbers are counted, not bytes: a number in fp32 has 4": (
        lambda batch, channels, stride, side, dims: batch * channels * (side // stride) ** dims
    ),
}
UNITS = {1: "bytes", 2**10: "KiB", 2**20: "MiB", 1e9: "GB, each 10⁹ bytes"}

SUM = (
    "for each layer, multiply images, channels, 4 bytes and positions: pixels or voxels, each side "
    "divided by the stride. Then add up all layers"
)


def check_sizes(function: Callable[[Layers, int, int, int], float]) -> str:
    """Check the sum against what fake tensors save, for images and volumes."""
    for case in CASES:
        batch, side, dims = case
        _check(function, saved_outputs(), case, unet_memory(dims, side, batch)[0], SUM, 0.005)
    return f"what {len(CASES)} forward passes save on fake tensors, within 0.5 %"


def _check(
    function: Callable, layers: Layers, case: tuple, expected: float, rule: str, tolerance: float
) -> None:
    """Compare one sum with the expected GiB."""
    batch, side, dims = case
    (value,) = results.numbers(results.call(function, layers, *case), "gib")
    causes = {
        expected * 2**30 / unit: f"these are {name}, expected GiB, each 2**30 bytes"
        for unit, name in UNITS.items()
    }
    causes |= {
        sum(wrong(batch, *layer, side, dims) for layer in layers) / 2**30: words
        for words, wrong in MISTAKES.items()
    }
    words = f"{len(layers)} layers, batch {batch}, side {side}, {dims} dimensions, in GiB"
    results.compare(words, value, expected, causes, rule=rule, tolerance=tolerance)


def check_growth(function: Callable[[Layers, int, int, int], float]) -> str:
    """Check that the function sums the layers that it gets, and how it grows with the side."""
    for layers, case in (
        ([(8, 2)], (2, 64, 3)),
        ([(64, 1), (3, 3), (64, 1), (4000, 32)], (5, 96 * 7, 2)),
        ([(17, 6), (1, 1)], (37, 96, 3)),
    ):
        expected, rule = activation_gib(layers, *case), "sum only the argument `layers`"
        _check(function, layers, case, expected, f"{SUM}; {rule}", 1e-4)
    growth = [function([(8, 2)], 1, 128, d) / function([(8, 2)], 1, 64, d) for d in (2, 3)]
    return f"doubling the side needs {growth[0]:g}× in 2-D and {growth[1]:g}× in 3-D"
