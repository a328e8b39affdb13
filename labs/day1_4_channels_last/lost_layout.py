"""Networks with a copy to NCHW at an unknown place, and checks of a function that finds it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import torch
import torchvision
from torch import nn

from course.training import models
from course.training.precision import channels_last

FirstLost = Callable[[nn.Module, torch.Tensor], str | None]
BLOCKS = (torchvision.models.resnet.BasicBlock, torchvision.models.resnet.Bottleneck)
# In a block, at a stage's end, in a branch, nowhere, in two blocks.
PLACES = (["layer2.0"], ["layer1.1"], ["layer3.0.downsample"], [], ["layer4.0", "layer2.1"])
WITHOUT_LAYOUT = {
    "fc": "its output has 2 dimensions, and only a 4-d tensor is channels_last or not: "
    "test output.dim() first",
    "avgpool": "its output has one pixel per channel, so it is in both layouts at once: "
    "is_contiguous(memory_format=torch.channels_last) returns True for it",
}


def planted(number: int, model: str = "resnet50") -> nn.Module:
    """Create a channels_last ResNet that returns to NCHW after one module, chosen by the number."""
    network = channels_last(models.create(model, 16))
    return plant(network, random.Random(number).choice(places(network)))


def places(network: nn.Module) -> list[str]:
    """Return the names of a ResNet's blocks and downsample branches."""
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, BLOCKS) or name.endswith(".downsample")
    ]


def plant(network: nn.Module, *names: str) -> nn.Module:
    """Make modules return `.contiguous()`, without a trace in what `print(network)` shows."""
    for name in names:
        module = network.get_submodule(name)
        kind = type(module)

        class Planted(kind):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x).contiguous()

        Planted.__name__ = Planted.__qualname__ = kind.__name__
        module.__class__ = Planted
    return network


def first_lost(model: nn.Module, images: torch.Tensor) -> str | None:
    """Return the name of the first module whose output is not channels_last, or None."""
    lost, hooks = [], []
    for name, module in model.named_modules():

        def note(module: nn.Module, inputs: tuple, output: torch.Tensor, name: str = name) -> None:
            kept = output.is_contiguous(memory_format=torch.channels_last)
            if output.dim() == 4 and not kept:
                lost.append(name)

        hooks.append(module.register_forward_hook(note))
    model(images)
    for hook in hooks:
        hook.remove()
    return lost[0] if lost else None


def check_places(function: FirstLost) -> str:
    """Check the answer for copies in a block, at a stage's end, in a branch, and for no copy."""
    for names in PLACES:
        network, images = _network(*names)
        expected = min(names, default=None)  # in alphabetical order, which is that of execution
        answer = function(network, images)
        where = f"`.contiguous()` after {' and '.join(names)}" if names else "no `.contiguous()`"
        assert answer == expected, (
            f"network with {where}: your function returned {answer!r:.60}, expected {expected!r}. "
            f"{_reason(answer, expected)}"
        )
    return "the copy is found after a block, at a stage's end, in a branch; and no copy is invented"


def check_hooks_removed(function: FirstLost) -> str:
    """Check that the network has no hooks left: functions in a notebook can't be pickled."""
    network, images = _network()
    function(network, images)
    try:
        pickle.dumps(network)
    except (AttributeError, TypeError, pickle.PicklingError):
        raise AssertionError(
            "after your function, the network still has your hooks, so it can't be saved: "
            "register_forward_hook returns a handle; call remove() on each"
        ) from None
    return "the network has no hooks left"


def _network(*names: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    network = plant(channels_last(models.create("resnet18", 16)), *names)
    return network, channels_last(torch.randn(2, 3, 64, 64))


def _reason(answer: object, expected: str | None) -> str:
    """Explain a wrong answer."""
    if answer is None:
        return "Did a hook note it? Hooks run only when the network does: call model(images)"
    if not isinstance(answer, str):
        return "Return one name, or None"
    if answer in WITHOUT_LAYOUT:
        return f"{answer}: {WITHOUT_LAYOUT[answer]}"
    if answer == "conv1":
        return (
            "Its output is channels_last. is_contiguous() without an argument tests for NCHW: "
            "give it memory_format=torch.channels_last"
        )
    if answer == "":
        return "'' is the name of the network itself"
    if expected and expected.startswith(f"{answer}."):
        return (
            f"{answer!r} contains {expected!r} and returns the same tensor, but later: keep the "
            f"order in which the hooks were called"
        )
    return "Return the first name that a hook noted"
