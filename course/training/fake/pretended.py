"""A rehearsal: a training script's first step on a pretended accelerator.

A machine without an accelerator cannot tell whether a script would move its tensors to one:
`.to(device)` does nothing there. PyTorch's fake tensors can. They compute nothing, but each has
a device, and an operator that is given tensors of two devices refuses, as on a real GPU. In the
same way a rank can be rehearsed of whose node and neighbours there is nothing here.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import resnet

from course.config import Config
from course.data.loader import ImageSets
from course.training import (
    meter,  # noqa: F401 (a script's import would see what is patched here)
    models,
)
from course.training.evidence.operators import COPIES, waits_not
from course.training.fake import compiler

PRETENDED = torch.device("cuda")
FIRST_NODE = "first-node"  # where a pretended rank's launcher says that ranks meet
# What is rehearsed shows at any size, and nothing is computed.
SMALL: dict[str, Any] = {"model": "resnet18", "image_px": 32}
SMALL |= {"profile_steps": 0, "val_steps": 0, "save_weights": False}
aten = torch.ops.aten


@dataclass
class Rehearsed:
    """What a script's first step does on an accelerator.

    error: what ended it, with its line, or "". computed_on: where the loss lay. selected: the
    index of the device that the script made the current one. copied: of "images" and "labels",
    each (type, non_blocking) with which they came to the device. loading: the arguments for
    DataLoader. joined: those of init_process_group, None where it was not called. compiled: each
    call of torch.compile. parallel: how often each DistributedDataParallel was called.
    """

    error: str = ""
    computed_on: torch.device | None = None
    selected: int | None = None
    copied: dict[str, set[tuple[str, bool]]] = field(default_factory=dict)
    loading: dict[str, Any] = field(default_factory=dict)
    joined: dict[str, Any] | None = None
    compiled: list[compiler.Asked] = field(default_factory=list)
    parallel: list[int] = field(default_factory=list)


class _Beginning(resnet.ResNet):
    """ResNet-18 up to the end of its first layer: a third of the operators, by the same names."""

    def __init__(self, name: str, classes: int, image_px: int = 224) -> None:
        super().__init__(resnet.BasicBlock, [2, 0, 0, 0], num_classes=1)
        self.fc = nn.Linear(self.inplanes, classes)

    def _make_layer(
        self, block: Any, planes: int, blocks: int, *rest: Any, **options: Any
    ) -> nn.Sequential:
        if not blocks:
            return nn.Sequential()
        return super()._make_layer(block, planes, blocks, *rest, **options)


class _Meter:
    """In the place of `course.training.meter.Meter`: one step, not timed."""

    step, phase = 0, "load"

    def __init__(self, run: _Run, device: torch.device, first: int = 0) -> None:
        self.run, self.config, self.device = run, run.config, device

    def steps(self, batches: Any, _epoch: int) -> Iterator[Any]:
        yield next(iter(batches))

    def lap(self, _phase: str, loss: torch.Tensor | None = None) -> None:
        """Nothing is timed."""

    def summary(self) -> dict[str, Any]:
        return {}


class _Run:
    """In the place of `course.training.recorder.Recorder`: it keeps nothing."""

    folder, has_folder, is_over = None, False, False
    rank_folder = checkpoint = checkpoints = resume_checkpoint = None

    def __init__(self, config: Config, rank: int, local_rank: int, world_size: int) -> None:
        self.config = config
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Nothing is recorded."""

    set = epoch = write_steps = save_trace = save_weights = keep_weights = save_network = _ignore
    ready = finish = _ignore
    check_process_group = before_epoch = keep_steps = mark_interrupted = _ignore

    def group_size(self) -> int:
        return self.world_size

    def describe(self, _: torch.device) -> dict[str, Any]:
        return {}


class _Parallel(nn.Module):
    """In the place of DistributedDataParallel: the network alone."""

    made: list[_Parallel] = []

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module, self.calls = module, 0
        self.made.append(self)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.calls += 1
        return self.module(*inputs, **named)

    def register_comm_hook(self, *_: Any) -> None:
        """Nothing is sent."""


class _Copies(TorchDispatchMode):
    """Notes how the images and labels of a batch come to the accelerator."""

    def __init__(self, cfg: Config, found: Rehearsed) -> None:
        super().__init__()
        self._cfg, self._found = cfg, found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in COPIES:
            source = args[0] if func is aten._to_copy.default else args[1]
            if source.device.type == "cpu" and result.device.type != "cpu":
                self._note(source, waits_not(args, kwargs or {}))
        return result

    def _note(self, source: torch.Tensor, non_blocking: bool) -> None:
        rows, pixels = self._cfg.batch_size, self._cfg.image_px
        whats = {(rows,): "labels", (rows, 3, pixels, pixels): "images"}
        if what := whats.get(tuple(source.shape)):
            copied = self._found.copied.setdefault(what, set())
            copied.add((str(source.dtype).removeprefix("torch."), non_blocking))


def rehearse(
    text: str, cfg: Config, *, rank: int = 0, local_rank: int = 0, world_size: int = 1
) -> Rehearsed:
    """What the script's first step does, were there an accelerator, or as many as ranks.

    Args:
        text: a training script, shaped as solutions/train.py.
        cfg: its config; sizes are replaced by small ones.
        rank, local_rank, world_size: of a process among several.
    """
    cfg = replace(cfg, **SMALL, batch_size=2 * world_size)
    with patch.object(models, "create", _Beginning):
        found = _rehearsed(text, cfg, rank, local_rank, world_size)
    # A script may name what only the whole network has.
    return _rehearsed(text, cfg, rank, local_rank, world_size) if found.error else found


def _rehearsed(text: str, cfg: Config, rank: int, local_rank: int, world_size: int) -> Rehearsed:
    script, found = ModuleType("rehearsed"), Rehearsed()
    try:
        with _pretended(cfg, found, rank, local_rank, world_size), redirect_stdout(None):
            exec(compile(text, "train.py", "exec"), vars(script))
            with patch.multiple(script, **_stand_ins(cfg, found)):
                script.main(_Run(cfg, rank, local_rank, world_size))
    except Exception as error:
        places = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == "train.py"
        ]
        where = f" (train.py, line {places[-1].lineno})" if places else ""
        said = str(error).partition("\n")[0]
        found.error = f"{type(error).__name__}: {said}{where}"
    if not (found.error or found.computed_on):
        found.error = "no step called backward()"
    return found


def _apply(self: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """`Module._apply` for fake tensors, whose storage PyTorch's own would try to swap."""
    for module in self.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(change(parameter))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


def _stand_ins(cfg: Config, found: Rehearsed) -> dict[str, Any]:
    """What the script imports from the course, and would read files or keep times."""

    def image_sets(cfg: Config) -> ImageSets:
        return ImageSets(range(cfg.batch_size), range(cfg.batch_size), 10)

    def loaders(_sets: ImageSets, cfg: Config, *_: Any, **loading: Any) -> tuple[list, list]:
        found.loading = loading
        shape = (cfg.batch_size, 3, cfg.image_px, cfg.image_px)
        images = torch.zeros(shape, dtype=torch.uint8 if cfg.uint8 else torch.float32)
        labels = torch.zeros(cfg.batch_size, dtype=torch.long)
        return [(images, labels)], []

    return {"image_sets": image_sets, "loaders": loaders, "Meter": _Meter}


def _devices(found: Rehearsed, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `torch.cuda` and `torch.accelerator` answer, on a node with so many accelerators."""

    def select(device: torch.device | int | str) -> None:
        found.selected = device if isinstance(device, int) else torch.device(device).index

    def selected() -> int:
        return found.selected or 0

    def accelerator(*_: Any, **__: Any) -> torch.device:
        return PRETENDED

    both = {"is_available": _yes, "device_count": lambda: count}
    cuda = {"is_initialized": _yes, "is_bf16_supported": _yes}
    cuda |= {"current_device": selected, "set_device": select}
    # Where there is a GPU that nobody used yet, there are no generators to seed.
    cuda |= dict.fromkeys(("manual_seed", "manual_seed_all"), _Run._ignore)
    own = {"current_accelerator": accelerator, "current_device_index": selected}
    own |= {"set_device_index": select, "set_device_idx": select}
    return both | cuda, both | own


@contextmanager
def _pretended(
    cfg: Config, found: Rehearsed, rank: int, local_rank: int, world_size: int
) -> Iterator[None]:
    def backward(loss: torch.Tensor, **_: Any) -> None:
        found.computed_on = loss.device  # autograd itself would ask for a real device

    # As many as there were ranks before the first one of this node.
    cuda, accelerator = _devices(found, (rank - local_rank) or world_size)
    tensor = {"backward": backward, "item": _zero, "__float__": _zero}
    is_on = {each: torch.is_autocast_enabled(each) for each in ("cpu", PRETENDED.type)}
    with ExitStack() as stack:
        for device_type, before in is_on.items():  # a script may leave it on
            stack.callback(torch.set_autocast_enabled, device_type, before)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        # Or CUDA is asked for a driver.
        stack.enter_context(patch.object(FakeTensorMode, "avoid_device_init", True))
        # Or a number is put on the GPU of a rank's index, which this machine may not have.
        stack.enter_context(patch.object(fake_tensor, "init_gpu_context", _Run._ignore))
        stack.enter_context(patch.multiple(torch.accelerator, **accelerator))
        stack.enter_context(patch.multiple(torch.cuda, **cuda))  # for scripts that ask CUDA itself
        stack.enter_context(patch.multiple(torch.Tensor, **tensor))
        stack.enter_context(patch.object(nn.Module, "_apply", _apply))
        # Numbers that are pretended cannot be looked at.
        stack.enter_context(patch.object(Distribution, "_validate_args", False))
        if world_size > 1:
            stack.enter_context(_group(found, rank, local_rank, world_size))
        stack.enter_context(compiler.noting(found.compiled, _Parallel))
        stack.enter_context(_Copies(cfg, found))
        yield


@contextmanager
def _group(found: Rehearsed, rank: int, local_rank: int, world_size: int) -> Iterator[None]:
    """Other ranks, pretended: whatever is sent to them is lost."""

    def join(backend: str | None = None, init_method: str | None = None, **more: Any) -> None:
        found.joined = {"backend": backend, "init_method": init_method, **more}

    met = {"MASTER_ADDR": FIRST_NODE, "MASTER_PORT": "29500"}
    met |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(local_rank)}
    calls = {"init_process_group": join, "is_initialized": lambda: found.joined is not None}
    calls |= {"get_rank": lambda *_: rank, "get_world_size": lambda *_: world_size}
    calls |= dict.fromkeys(("all_reduce", "broadcast", "barrier"), _Run._ignore)
    with (
        patch.dict(os.environ, met),
        patch.multiple(distributed, **calls),
        patch.object(nn.parallel, "DistributedDataParallel", _Parallel),
        patch.object(_Parallel, "made", []) as made,
    ):
        try:
            yield
        finally:
            found.parallel = [each.calls for each in made]


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _zero(_: torch.Tensor) -> float:
    """A number where a script prints one: a fake tensor has none to read."""
    return 0.0
