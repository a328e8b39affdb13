"""Networks with a copy to NCHW at an unknown place, and checks of a function that finds it."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable

import torch
import torchvision
from torch import nn

from course.training import channels_last, models
from labs._compat import hooks

FirstLost = Callable[[nn.Module, torch.Tensor], str | None]
BLOCKS = (torchvision.models.resnet.BasicBlock, torchvision.models.resnet.Bottleneck)
# Of ResNet-18: in a block, at a stage's end, in a branch, nowhere.
PLACES = (["layer2.0"], ["layer1.1"], ["layer3.0.downsample"], [])
# Of the network below, with the expected name first.
SMALL_PLACES = (
    ["stem", "body.2.conv"],
    ["body.2.conv", "body.1"],
    ["body.10", "end"],
    ["body.10", "aside"],
    [],
)
WITHOUT_LAYOUT = {
    "fc": "its output has 2 dimensions, and only a 4-d tensor is channels_last or not: "
    "test output.dim() first",
    "avgpool": "its output has one pixel per channel, so it is in both layouts at once: "
    "is_contiguous(memory_format=torch.channels_last) returns True for it",
}


class _OddNames(nn.Module):
    """Layers whose order of execution is neither that of their definition nor the alphabet's."""

    def __init__(self) -> None:
        super().__init__()
        self.end, self.aside = nn.Conv2d(8, 1, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.scale = nn.BatchNorm2d(1)  # an output of one channel is in both layouts
        conv = nn.Conv2d(8, 8, 3)
        layers = {"2": nn.Sequential(OrderedDict(conv=conv)), "10": nn.ReLU(), "1": nn.ReLU()}
        self.body = nn.Sequential(OrderedDict(layers))
        self.stem = nn.Conv2d(5, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.end(self.aside(self.body(self.stem(x)))))


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
    cases = [(False, names) for names in PLACES] + [(True, names) for names in SMALL_PLACES]
    for small, names in cases:
        network, images = _network(*names, small=small)
        expected = names[0] if names else None
        answer = function(network, images)
        where = f"`.contiguous()` after {' and '.join(names)}" if names else "no `.contiguous()`"
        assert answer == expected, (
            f"network with {where}: your function returned {answer!r:.60}, expected {expected!r}. "
            f"{_reason(answer, expected)}"
        )
    return "the copy is found after a block, at a stage's end, in a branch; and no copy is invented"


def check_hooks_removed(function: FirstLost) -> str:
    """Check that the network keeps its own hooks, and no others, and its mode."""
    network, images = _network(small=True)
    network.body.register_forward_hook(lambda *_: None)
    before = hooks(network)
    function(network, images)
    assert not (left := hooks(network) - before), (
        f"after your function, the network still has {len(left)} of your hooks, so it can't be "
        f"saved: what registers a hook returns a handle; call remove() on each"
    )
    assert hooks(network) == before, "it removed a hook that is not its own: call remove() on each"
    assert network.training, "it left the network in evaluation mode: call model.train() afterwards"
    return "the network has no hooks left"


def _network(*names: str, small: bool = False) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    network = _OddNames() if small else models.create("resnet18", 16)
    images = torch.randn(3, 5, 20, 30) if small else torch.randn(2, 3, 64, 64)
    return plant(channels_last(network), *names), channels_last(images)


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
