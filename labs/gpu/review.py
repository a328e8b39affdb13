"""A training loop without the five mistakes of the lab's loop, and what a loop does while it runs.

The check runs the learner's loop twice on a tiny network. On the CPU, it must give the same weights
as the loop here. Then PyTorch's `meta` device, on which nothing is computed, takes the place of a
GPU, and an observer notes what the loop copies, creates and keeps.
"""

from __future__ import annotations

import io
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course._compat import TorchDispatchMode, tensors_in
from course.lab import results

BATCHES, VAL_BATCHES, EPOCHS = 6, 3, 2
Train = Callable[..., Any]
GPU = torch.device("meta")  # what takes its place


def train(model, batches, val_batches, device, epochs=EPOCHS):
    """Train, validate after each epoch, and return the last loss and accuracy: a careful loop."""
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        loss = train_epoch(model, batches, optimizer, device)
        accuracy = validate(model, val_batches, device)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.0%}")
    return float(loss), float(accuracy)


def training_step(model, images, labels, optimizer, device):
    """Make one update; return its loss."""
    pixels = torch.tensor(images).to(device) / 255
    noise = torch.randn(pixels.shape, device=device)
    loss = cross_entropy(model(pixels + 0.1 * noise), torch.tensor(labels).to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_epoch(model, batches, optimizer, device):
    """Train on all batches; return the mean of their losses."""
    model.train()
    losses = [training_step(model, *batch, optimizer, device) for batch in batches]
    return sum(losses) / len(losses)


@torch.no_grad()
def validate(model, batches, device):
    """Return the share of images that the model classifies correctly."""
    model.eval()
    right = total = 0
    for images, labels in batches:
        pixels = torch.tensor(images).to(device) / 255
        right += (model(pixels).argmax(1) == torch.tensor(labels).to(device)).sum()
        total += len(labels)
    return right / total


class _Observer(TorchDispatchMode):
    """Count, by the model's mode (training or validation), what a loop on a `meta` device does.

    Numbers that are copied from the device to the host are zero.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.passes: Counter[str] = Counter()  # forward passes
        self.with_graph: Counter[str] = Counter()  # forward passes that autograd recorded
        self.waits: Counter[str] = Counter()  # forward passes after which the host waited
        self.float64: Counter[str] = Counter()  # numbers of that type that reached the device
        self.host_random: Counter[str] = Counter()  # random numbers that the CPU made
        self.graphs = 0  # the most that were alive at once, when a forward pass began
        self._markers: list[weakref.ref] = []
        self._has_waited = False
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    @property
    def phase(self) -> str:
        return "training" if self.model.training else "validation"

    def _begin(self, *_: Any) -> None:
        self.passes[self.phase] += 1
        self.with_graph[self.phase] += torch.is_grad_enabled()
        self.graphs = max(self.graphs, sum(marker() is not None for marker in self._markers))
        self._has_waited = False

    def _end(self, _model: nn.Module, _inputs: Any, scores: torch.Tensor) -> None:
        if self.model.training and scores.grad_fn is not None:
            marker = _Marker()
            scores.grad_fn.metadata["marker"] = marker  # exists as long as the graph
            self._markers.append(weakref.ref(marker))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # in inference mode, operators arrive that consist of others, such as `item`
            output = func.decompose(*args, **kwargs)
        if output is not NotImplemented:
            return output
        on_gpu = any(tensor.device == GPU for tensor in tensors_in((args, kwargs)))
        name = func.name()
        if name == "aten::_local_scalar_dense" and on_gpu:
            self._note_wait()
            return torch.zeros((), dtype=args[0].dtype).item()
        if name == "aten::_to_copy" and on_gpu and _is_cpu(kwargs.get("device")):
            self._note_wait()
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "aten::copy_" and on_gpu and _is_cpu(args[0].device):
            self._note_wait()
            return args[0].zero_()
        output = func(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            if torch.Tag.nondeterministic_seeded in func.tags and _is_cpu(output.device):
                self.host_random[self.phase] += output.numel()
            if output.device == GPU and output.dtype == torch.float64:
                self.float64[self.phase] += output.numel()
        return output

    def _note_wait(self) -> None:
        if not self._has_waited:
            self.waits[self.phase] += 1
        self._has_waited = True


class _Marker:
    """An object that a graph keeps alive."""


def _is_cpu(device: torch.device | None) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 4))


def _batches(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return batches of 16 images; with an odd count, the last one is smaller."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 16, 3, 8, 8), dtype=np.uint8)
    batches = [*zip(images, generator.integers(0, 4, (count, 16)))]
    return [*batches[:-1], tuple(part[: 16 if count % 2 == 0 else 5] for part in batches[-1])]


def _run(
    function: Train,
    model: nn.Module,
    device: torch.device,
    batches: int = BATCHES,
    epochs: int = EPOCHS,
) -> Any:
    """Train without showing what the function prints."""
    torch.manual_seed(1)
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a loss that is read together with its graph
        return function(model, _batches(batches, 0), _batches(VAL_BATCHES, 1), device, epochs)


def _observe(function: Train) -> _Observer:
    """Run a training loop with the `meta` device in the place of a GPU."""
    model = _network()
    observer, show = _Observer(model), torch.Tensor.__repr__

    # PyTorch does not read the numbers of a `meta` tensor that is printed, as it does on a GPU.
    def text(tensor: torch.Tensor, spec: str) -> str:
        return format(tensor.item() if tensor.dim() == 0 else repr(tensor), spec)

    def printed(tensor: torch.Tensor, **options: Any) -> str:
        return show(tensor.cpu(), **options)

    with patch.multiple(torch.Tensor, __format__=text, __repr__=printed), observer:
        _run(function, model, GPU)
    return observer


def observe_loop(function: Train) -> pd.DataFrame:
    """Return what a training loop does with a GPU, next to a careful loop; this needs no GPU."""
    columns = {"your loop": _observe(function), "a careful loop": _observe(train)}
    rows = {}
    for name, seen in columns.items():
        passes = seen.passes
        rows[name] = {
            "float64 numbers on the device": seen.float64.total(),
            "random numbers made by the CPU": seen.host_random.total(),
            "training steps in which the host waits": (
                f"{seen.waits['training']} of {passes['training']}"
            ),
            "graphs of earlier steps that are kept": max(seen.graphs - 1, 0),
            "validation passes that record a graph": (
                f"{seen.with_graph['validation']} of {passes['validation']}"
            ),
        }
    return pd.DataFrame(rows)


def check_weights(function: Train) -> str:
    """Check that a loop trains the same weights as the careful one, and returns the same."""
    models, sizes = (_network(), _network()), {"batches": 4, "epochs": 3}
    result, expected = (
        _run(loop, model, torch.device("cpu"), **sizes)
        for loop, model in zip((function, train), models)
    )
    values, wanted = (model.state_dict() for model in models)
    for name, value in values.items():
        assert torch.allclose(value.double(), wanted[name].double(), rtol=1e-3, atol=1e-4), (
            f"after training, `{name}` is not what the original loop gives. Keep what it computes: "
            f"pixels from 0 to 1, new noise with `torch.randn` in each step, one update per batch, "
            f"and `model.train()` and `model.eval()` where they were"
        )
    for name, value, right in zip(
        ("loss", "accuracy"), results.numbers(result, "loss, accuracy"), expected
    ):
        assert abs(value - right) < 1e-3, (
            f"`train` returns the {name} {value:.4g} of {sizes}, expected {right:.4g}, of the last "
            f"epoch"
        )
    return "the weights, the loss and the accuracy are those of the original loop"


def check_mistakes(function: Train) -> str:
    """Check what a loop does with a device: the five mistakes, each with its own message."""
    seen = _observe(function)
    steps, validations = seen.passes["training"], seen.passes["validation"]
    found = []
    if count := seen.float64.total():
        where = " and ".join(seen.float64)
        found.append(
            f"in {where}, {count:,} numbers reach the device as float64. The images have one byte "
            f"per number: which operation makes eight of it?"
        )
    if count := seen.host_random.total():
        found.append(
            f"the CPU makes {count:,} random numbers, which are then copied to the device. Where "
            f"does `torch.randn` create its tensor, and how can you choose?"
        )
    for phase, passes in seen.passes.items():
        if seen.waits[phase] > passes / 2:
            found.append(
                f"in {seen.waits[phase]} of {passes} batches of {phase}, the host reads a number "
                f"from the device, and waits for it. Which line needs that number?"
            )
    if seen.graphs > 2:
        found.append(
            f"the graphs of {seen.graphs} steps are in memory at once, expected at most one. A "
            f"loss has a graph: what does the loop keep of each loss?"
        )
    if count := seen.with_graph["validation"]:
        found.append(
            f"in {count} of {validations} validation passes, autograd records a graph and keeps "
            f"the activations, although no backward pass follows. How do you tell PyTorch so?"
        )
    assert not found, f"mistakes left: {len(found)}. The first: {found[0]}"
    return f"{steps} steps and {validations} validation passes without one of the five mistakes"
