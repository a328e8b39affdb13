"""How large a batch is of use: the gradient's noise, estimated from two batch sizes in one step.

The gradient of B images is the true one and noise, whose square falls as 1 / B. Where both are as
large, a batch twice as large begins to gain little (McCandlish et al. 2018, arXiv:1812.06162).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Noise:
    """What a few steps showed.

    noise: of one image, the sum over all weights of its gradient's variance. gradient: the true
    gradient's square. steps: from how many they were estimated.
    """

    noise: float
    gradient: float
    steps: int

    @property
    def scale(self) -> float:
        """Images in a batch whose noise is as large as its gradient; inf where none was seen."""
        return self.noise / self.gradient if self.gradient > 0 else float("inf")

    def updates(self, batch_size: float, least: float = 1.0) -> float:
        """Updates that training takes with a batch, where with endless ones it takes `least`."""
        return least * (1 + self.scale / batch_size)

    def images(self, batch_size: float, least: float = 1.0) -> float:
        """Images that it takes, where one by one it takes `least`."""
        return least * (1 + batch_size / self.scale)


def noise(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], parts: int = 8
) -> Noise:
    """The noise of a network's gradients, as it is now: no weight is changed.

    Each batch is cut into parts, as data parallelism does. Of the squares of the parts' gradients
    and of their mean's the two unknowns follow (McCandlish et al. 2018, appendix A.1); each of
    them is averaged over the batches before they are divided.

    Args:
        model: in the mode in which it trains; BatchNorm sees a part at a time.
        batches: (images, labels) as a loader gives them, normalised.

    Raises:
        ValueError: no batch, or one that `parts` does not divide.
    """
    kept = {name: each.clone() for name, each in model.named_buffers()}
    squares = [_squares(model, *batch, parts) for batch in batches]
    with torch.no_grad():
        for name, each in model.named_buffers():
            each.copy_(kept[name])  # running statistics
    if not squares:
        raise ValueError("no batch: give one or more of (images, labels)")
    small, large, size = (torch.tensor(each).double() for each in zip(*squares))
    part = size / parts
    gradient = ((size * large - part * small) / (size - part)).mean()
    spread = ((small - large) / (1 / part - 1 / size)).mean()
    return Noise(float(spread), float(gradient), len(squares))


def _squares(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, parts: int
) -> tuple[float, float, int]:
    """Mean square of the parts' gradients, the square of their mean, and the batch's size."""
    if parts < 2 or len(images) % parts:
        raise ValueError(f"a batch of {len(images)} in parts={parts}: 2 or more, each as large")
    weights = [each for each in model.parameters() if each.requires_grad]
    total, squares = [torch.zeros_like(each) for each in weights], 0.0
    for some, theirs in zip(images.chunk(parts), labels.chunk(parts)):
        loss = nn.functional.cross_entropy(model(some), theirs)
        found = torch.autograd.grad(loss, weights)
        squares += sum(float(each.square().sum()) for each in found) / parts
        torch._foreach_add_(total, found)
    mean = sum(float((each / parts).square().sum()) for each in total)
    return squares, mean, len(images)
