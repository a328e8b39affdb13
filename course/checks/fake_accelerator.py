"""Execute a script's first step on a fake accelerator, without computing anything.

On a machine without an accelerator `.to(device)` does nothing. PyTorch's fake tensors compute
nothing either, but each has a device, and an operator refuses tensors of two devices, as on a GPU.
In the same way a script can be executed as a rank on another node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import distributed, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributions import Distribution
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course._compat import FakeTensorMode, TorchDispatchMode, fake_tensor, tensors_in
from course.checks import tiny_networks
from course.checks.script_edits import compile_script
from course.config import Config
from course.data.loader import ImageSets
from course.runs.failures import summarize
from course.training import meter, models  # noqa: F401 (imported before anything is replaced)
from course.training.evidence.operators import layout

CUDA = torch.device("cuda")
FIRST_NODE = "first-node"  # the address at which a fake rank's launcher lets ranks meet
PORT = "31947"  # and the port there, which is not PyTorch's default
EACH_RANK = 2  # images of a batch
SMALL: dict[str, Any] = {"model": "resnet18", "image_px": 32}
SMALL |= {"profile_steps": 0, "val_steps": 0, "save_weights": False}
SMALL |= {"epochs": 2, "budget_s": 0.0}  # the second step may differ from the first
COPIES = {"aten::_to_copy": 0, "aten::copy_": 1}  # each with the place of its source


@dataclass
class FirstStep:
    """Observations of a script's first step.

    error: the error that ended it, with its line, or "". computed_on: the loss's device. selected:
    the index of the device that the script made the current one. copied: for "images" and "labels",
    each (type, non_blocking) with which they were copied to the device. loading: the DataLoader's
    arguments. train: its training images. share: how many of a batch this rank loads. joined: the
    arguments of init_process_group, None if it was not called. types, layouts: of the convolutions'
    inputs and weights in the forward pass. scales_loss: whether an enabled GradScaler updates.
    compiles: how often torch.compile is called.
    activities: what the profiler records, None by default. updates: for each update the settings of
    each group of weights. kept_on: the device types on which tensors are stored for backward.
    returned_to: those on which backward gets them. pins: whether save_on_cpu pins their memory.
    """

    error: str = ""
    computed_on: torch.device | None = None
    selected: int | None = None
    copied: dict[str, set[tuple[str, bool]]] = field(default_factory=dict)
    loading: dict[str, Any] = field(default_factory=dict)
    train: Any = None
    share: int | None = None
    joined: dict[str, Any] | None = None
    types: set[str] = field(default_factory=set)
    layouts: set[str] = field(default_factory=set)
    scales_loss: bool = False
    compiles: int = 0
    activities: Any = None
    updates: list[Any] = field(default_factory=list)
    kept_on: set[str] = field(default_factory=set)
    pins: bool = True
    returned_to: set[str] = field(default_factory=set)


def first_step(
    text: str, cfg: Config, *, rank: int = 0, local_rank: int = 0, world_size: int = 1,
    is_available: bool = True,
) -> FirstStep:  # fmt: skip
    """Execute a script's first step on a fake accelerator, or as a rank of several.

    Args:
        text: a training script, structured like solutions/train.py.
        cfg: its config; sizes are replaced by small ones.
        is_available: whether PyTorch finds the accelerator.
    """
    cfg = replace(cfg, **SMALL, batch_size=EACH_RANK * world_size)
    script, step = ModuleType("train"), FirstStep()
    run = MagicMock(config=cfg, rank=rank, local_rank=local_rank, world_size=world_size)
    run.complete_epochs.return_value = cfg
    try:
        with _replaced(cfg, step, run, is_available), redirect_stdout(None):
            exec(compile_script(text), vars(script))
            with patch.multiple(script, **_stand_ins(cfg, step)):
                script.main(run)
    except Exception as error:
        step.error = summarize(error)
    if not (step.error or step.computed_on):
        step.error = "no step called backward()"
    return step


def _stand_ins(cfg: Config, step: FirstStep) -> dict[str, Any]:
    """Return replacements for the names that a script imports from the course."""

    def image_sets(cfg: Config) -> ImageSets:
        images = _Images(range(cfg.batch_size))
        if torch.get_default_device().type != "cpu":  # its generators are the host's
            raise RuntimeError("image_sets needs the CPU: leave PyTorch's default device as it is")
        return ImageSets(images, images, 10)

    def loaders(
        sets: ImageSets, cfg: Config, device: Any, share: int | None = None, **loading: Any
    ) -> tuple[list, list]:
        step.loading, step.train, step.share = loading, sets.train, share
        shape = (cfg.batch_size, 3, cfg.image_px, cfg.image_px)
        images = torch.zeros(shape, dtype=torch.uint8 if cfg.uint8 else torch.float32)
        return [(images, torch.zeros(cfg.batch_size, dtype=torch.long))], []

    def steps(batches: list, epoch: int) -> list:
        one_step.step = epoch  # each epoch has one
        return batches[:1]

    one_step = MagicMock(step=0, phase="load", steps=steps)
    return {"image_sets": image_sets, "loaders": loaders, "Meter": lambda *_, **__: one_step}


class _Images(list):
    """Numbers in place of images, with the attribute that readers of shards need."""

    transform = None


class _Copies(TorchDispatchMode):
    """Record how the images and labels of a batch are copied to the accelerator."""

    def __init__(self, cfg: Config, step: FirstStep) -> None:
        super().__init__()
        pixels = (cfg.batch_size, 3, cfg.image_px, cfg.image_px)
        self._names = {(cfg.batch_size,): "labels", pixels: "images"}
        self._copied, self._step = step.copied, step

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name == "aten::_sample_dirichlet":  # of Beta; it has no version for fake tensors
            return torch.empty_like(args[0])
        result = func(*args, **(kwargs or {}))
        if name == "aten::convolution":
            self._step.types.add(str(args[0].dtype).removeprefix("torch."))
            self._step.layouts |= {layout(tensor) for tensor in args[:2]} - {"either"}
        if name in COPIES:
            source = args[COPIES[name]]
            part = self._names.get(tuple(source.shape))
            if part and source.device.type == "cpu" != result.device.type:
                non_blocking = bool((kwargs or {}).get("non_blocking") or args[2:] == (True,))
                of_type = str(source.dtype).removeprefix("torch.")
                self._copied.setdefault(part, set()).add((of_type, non_blocking))
        return result


class _Parallel(nn.Module):
    """Replace DistributedDataParallel by the network itself."""

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)


@contextmanager
def _replaced(cfg: Config, step: FirstStep, run: Any, is_available: bool) -> Iterator[None]:
    def backward(loss: torch.Tensor, **_: Any) -> None:
        step.computed_on = loss.device  # autograd itself needs a real device

    def hooks(self: saved_tensors_hooks, pack: Any, unpack: Any) -> None:
        def unpacked_at_once(tensor: torch.Tensor) -> Any:
            packed = pack(tensor)
            step.kept_on |= {tensor.device.type for tensor in tensors_in(packed)}
            step.returned_to.add(unpack(packed).device.type)
            return packed

        set_hooks(self, unpacked_at_once, unpack)

    def offload(self: save_on_cpu, pin_memory: bool = False, *rest: Any, **named: Any) -> None:
        step.pins = pin_memory
        set_offload(self, pin_memory, *rest, **named)

    def scaler_step(scaler: torch.amp.GradScaler, optimizer: Any) -> None:
        step.scales_loss = scaler.is_enabled()  # without gradients it would refuse to update
        optimizer.step()

    def update(optimizer: Any, *_: Any) -> None:
        names = ("lr", "weight_decay")
        step.updates.append(
            [[len(group["params"]), *map(group.get, names)] for group in optimizer.param_groups]
        )

    def profile(activities: Any = None, **_: Any) -> MagicMock:
        step.activities = activities
        return MagicMock()

    def compiled(model: Any = None, **_: Any) -> Any:
        step.compiles += 1
        return model or (lambda model: model)

    def pinned(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        if is_available:
            return tensor
        raise RuntimeError("pin_memory() fails: let the DataLoader pin, pin_memory=cfg.pin_memory")

    # A node has as many devices as there were ranks before its first one.
    count = (run.rank - run.local_rank) or run.world_size
    cuda, accelerator = _devices(step, count * is_available)
    set_hooks, set_offload = saved_tensors_hooks.__init__, save_on_cpu.__init__
    tensor = {"backward": backward, "__deepcopy__": _deepcopy, "pin_memory": pinned}
    tensor |= dict.fromkeys(("item", "__float__"), lambda _: 0.0)  # if a script prints one
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        for target, name, value in (
            (FakeTensorMode, "avoid_device_init", True),  # otherwise CUDA looks for a driver
            (fake_tensor, "init_gpu_context", MagicMock()),  # and for a GPU of this number
            (models, "create", tiny_networks.create),
            (saved_tensors_hooks, "__init__", hooks),
            (save_on_cpu, "__init__", offload),
            (nn.Module, "_apply", _apply),
            (nn.SyncBatchNorm, "forward", nn.BatchNorm2d.forward),
            (nn.Parameter, "__deepcopy__", _deepcopy),
            (torch.amp.GradScaler, "step", scaler_step),
            (torch.amp.GradScaler, "update", lambda *_: None),
            (torch.profiler, "profile", profile),
            (torch, "compile", compiled),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(patch.multiple(torch.accelerator, **accelerator))
        stack.enter_context(patch.multiple(torch.cuda, **cuda))  # if scripts call CUDA directly
        stack.enter_context(patch.multiple(torch.Tensor, **tensor))
        if run.world_size > 1:
            stack.enter_context(_fake_group(step, run))
        stack.enter_context(_Copies(cfg, step))
        Distribution.set_default_validate_args(False)  # validation reads numbers
        stack.callback(Distribution.set_default_validate_args, True)
        stack.callback(register_optimizer_step_pre_hook(update).remove)
        yield


def _devices(step: FirstStep, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return replacements for functions of `torch.cuda` and `torch.accelerator`."""

    def select(device: torch.device | int | str) -> None:
        step.selected = device if isinstance(device, int) else torch.device(device).index

    def selected() -> int:
        return step.selected or 0

    def is_available(*_: Any, **__: Any) -> bool:
        return count > 0

    both = {"is_available": is_available, "device_count": lambda: count}
    cuda = dict.fromkeys(("is_initialized", "is_bf16_supported"), is_available)
    cuda |= {"current_device": selected, "set_device": select}
    cuda |= {"is_current_stream_capturing": lambda: False}  # AdamW of PyTorch 2.11 asks the driver
    cuda |= dict.fromkeys(("manual_seed", "manual_seed_all"), lambda *_: None)

    def accelerator(check_available: bool = False) -> torch.device | None:
        return CUDA if count or not check_available else None

    names = {"current_accelerator": accelerator, "current_device_index": selected}
    names |= {"set_device_index": select, "set_device_idx": select}
    return both | cuda, both | names


@contextmanager
def _fake_group(step: FirstStep, run: Any) -> Iterator[None]:
    """Pretend that the other ranks exist; discard everything that is sent to them."""

    def join(backend: str | None = None, init_method: str | None = None, **more: Any) -> None:
        is_env = init_method in (None, "env://")
        address = "{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ) if is_env else init_method
        step.joined = {"backend": backend, "address": address, **more}

    env = {"MASTER_ADDR": FIRST_NODE, "MASTER_PORT": PORT, "RANK": str(run.rank)}
    env |= {"WORLD_SIZE": str(run.world_size), "LOCAL_RANK": str(run.local_rank)}
    calls = {"init_process_group": join, "is_initialized": lambda: step.joined is not None}
    calls |= {"get_rank": lambda *_: run.rank, "get_world_size": lambda *_: run.world_size}
    calls |= dict.fromkeys(("all_reduce", "broadcast", "barrier"), lambda *_, **__: None)
    with (
        patch.dict(os.environ, env),
        patch.multiple(distributed, **calls),
        patch.object(nn.parallel, "DistributedDataParallel", _Parallel),
    ):
        yield


def _apply(self: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """Replace `Module._apply`, which would try to swap the storage of fake tensors."""
    for module in self.modules():
        for name, weight in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(change(weight)))
        for name, buffer in [*module.named_buffers(recurse=False)]:
            setattr(module, name, change(buffer))
    return self


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Replace `Tensor.__deepcopy__`, which ends the process with SIGSEGV for fake tensors."""
    if id(self) not in memo:
        copied = self.detach().clone()
        is_weight = isinstance(self, nn.Parameter)
        memo[id(self)] = nn.Parameter(copied, self.requires_grad) if is_weight else copied
    return memo[id(self)]
