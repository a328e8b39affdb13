"""Change how an unmodified script trains, and record its losses, in the script's process.

All changes are made where an object is constructed, or before the optimizer exists: a conversion
after that would leave the optimizer with other parameters.
"""

from __future__ import annotations

import functools
import gc
import inspect
import io
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from trainspeed._compat import tree_map_only
from trainspeed.lines import own_line
from trainspeed.recorder import first_tensor
from trainspeed.turns import ENDED

FILES = "files.jsonl"  # in the plan's folder
LOSSES = 200  # that are recorded
FUSED = {"Adam": {"cpu", "cuda"}, "AdamW": {"cpu", "cuda"}, "SGD": {"cpu", "cuda"}}
FUSED |= {"Adagrad": {"cpu"}}
# A constant, because tempfile opens a file while it holds a lock, and an audit hook must not wait.
TEMPORARY = os.path.abspath(tempfile.gettempdir()) + os.sep
CACHES = (".cache", "__pycache__", ".triton", ".nv", ".config")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


@dataclass
class Trial:
    """A run of a script with changes; its `report` has what shows whether it is the same training.

    Attributes:
        folder: of the plan.
        changes: arguments of each, by name.
        seed: is added to every seed that the script sets; 0: the script's own.
        end: called before the process ends itself.
    """

    folder: str
    changes: dict[str, dict[str, Any]]
    seed: int = 0
    end: Callable[[], None] = lambda: None
    applied: set[str] = field(default_factory=set)
    _losses: list[torch.Tensor] = field(default_factory=list)
    _batches: list[float] = field(default_factory=list)
    _count: int = 0

    def install(self) -> None:
        """Seed, watch which files are written, and install the changes."""
        self._seed_all()
        sys.addaudithook(self._note_file)
        torch.save = self._refuse_to_save(torch.save)
        for name, arguments in self.changes.items():
            getattr(self, f"_install_{name}")(**arguments)

    # What shows whether it is the same training.

    def add_loss(self, tensors: Any) -> None:
        """Record what a backward pass begins with, without waiting for the accelerator."""
        if self._count < LOSSES:
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
            with torch.no_grad():
                self._losses.append(sum(tensor.detach().float().mean() for tensor in tensors))
            self._count += 1

    def add_batch(self, batch: Any) -> None:
        """Record a few values of a batch that is still in the host's memory."""
        tensor = first_tensor(batch)
        if self._count < LOSSES and tensor is not None and tensor.device.type == "cpu":
            values = tensor.detach().flatten()
            self._batches.append(float(values[:: max(1, len(values) // 64)].double().sum()))

    def report(self) -> dict[str, Any]:
        """Return what was recorded since the last report; the accelerator has nothing to do."""
        losses, self._losses = [float(loss) for loss in self._losses], []
        batches, self._batches = self._batches, []
        return {"losses": losses, "batches": batches, "applied": sorted(self.applied)}

    def _seed_all(self) -> None:
        """Seed all generators, and add `seed` to what the script seeds them with."""
        np_seed, torch_seed, python_seed = np.random.seed, torch.manual_seed, random.seed
        torch_seed(self.seed)
        np_seed(self.seed)
        python_seed(self.seed)
        if self.seed:
            added = self.seed
            torch.manual_seed = lambda seed: torch_seed(int(seed) + added)
            torch.random.manual_seed = torch.manual_seed
            np.random.seed = lambda seed=None: np_seed(shift_seed(seed, added))
            random.seed = lambda a=None, version=2: python_seed(
                a + added if isinstance(a, int) else a, version
            )

    # What it must not do.

    def _refuse_to_save(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> None:
            target = args[1] if len(args) > 1 else kwargs.get("f")
            is_path = isinstance(target, (str, os.PathLike))
            if isinstance(target, io.BytesIO) or is_path and not is_kept(os.path.abspath(target)):
                return original(*args, **kwargs)
            self.end_process(f"torch.save is called: {own_line()}")
            return None

        return save

    def end_process(self, reason: str) -> None:
        """End this process, and leave why."""
        Path(self.folder, ENDED).write_text(reason)
        self.end()
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(128 + signal.SIGTERM)

    def _note_file(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        _, mode, flags = arguments
        if not (set(mode or "") & set("wax+") or isinstance(flags, int) and flags & WRITES):
            return
        with suppress(OSError):  # no reason for the script to fail
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if path.startswith(self.folder) or not is_kept(path):
                return
            line = json.dumps({"path": path, "line": own_line()}) + "\n"
            with open(os.path.join(self.folder, FILES), "a") as file:
                file.write(line)

    # The changes.

    def _install_cudnn_benchmark(self) -> None:
        torch.backends.cudnn.benchmark = True
        self.applied.add("cudnn_benchmark")

    def _install_tf32(self) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        self.applied.add("tf32")

    def _install_workers(self, line: str, **values: Any) -> None:
        """Construct the loader in this line with other values; "" means any line."""
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def construct(loader, *args, **kwargs):
            bound = signature.bind_partial(loader, *args, **kwargs).arguments
            bound.pop(next(iter(signature.parameters)))
            is_map = not isinstance(bound.get("dataset"), IterableDataset)
            if is_map and line in ("", own_line()):
                bound |= values
                self.applied.add("workers")
            return original(loader, **bound)

        DataLoader.__init__ = construct

    def _install_fused(self) -> None:
        for name, devices in FUSED.items():
            kind = getattr(torch.optim, name)
            kind.__init__ = self._construct_fused(kind.__init__, devices)

    def _construct_fused(self, original: Callable[..., None], devices: set[str]) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def construct(optimizer, *args, **kwargs):
            bound = signature.bind_partial(optimizer, *args, **kwargs).arguments
            used = any(bound.get(name) for name in ("foreach", "differentiable", "fused"))
            groups = as_groups(bound.get("params"))
            types = {parameter.device.type for parameter in parameters_in(groups)}
            if not used and types and types <= devices:
                kwargs["fused"] = True
                self.applied.add("fused")
            if len(args) and groups:
                args = (groups, *args[1:])
            elif groups:
                kwargs["params"] = groups
            return original(optimizer, *args, **kwargs)

        return construct

    def _install_bf16(self, modules: list[str]) -> None:
        before_optimizer(lambda module: change_call(module, self._autocast), modules)

    def _install_channels_last(self, modules: list[str]) -> None:
        def convert(module: torch.nn.Module) -> None:
            module.to(memory_format=torch.channels_last)
            change_call(module, self._channels_last)

        before_optimizer(convert, modules)

    def _install_compile(self, modules: list[str]) -> None:
        def compile_(module: torch.nn.Module) -> None:
            # The compiler starts `python -c`, which would import from the current directory.
            os.environ["PYTHONSAFEPATH"] = "1"
            if isinstance(module, DistributedDataParallel):
                module = module.module  # Dynamo leaves the wrapper, and would skip a Sequential
            module.compile()
            self.applied.add("compile")

        before_optimizer(compile_, modules)

    def _autocast(self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if not module.training:
            return call(*args, **kwargs)
        self.applied.add("bf16")
        with torch.autocast(next(module.parameters()).device.type, torch.bfloat16):
            output = call(*args, **kwargs)
        return tree_map_only(torch.Tensor, to_float32, output)

    def _channels_last(self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        self.applied.add("channels_last")
        args, kwargs = tree_map_only(torch.Tensor, to_channels_last, (args, kwargs))
        return call(*args, **kwargs)


def shift_seed(seed: Any, added: int) -> Any:
    """Return another seed for NumPy: a number, or several, as a DataLoader's worker gives."""
    if seed is None:
        return None
    return ((np.asarray(seed, dtype=np.uint64) + added) % 2**32).tolist()


def is_kept(path: str) -> bool:
    """Return whether a file in this path is more than temporary."""
    parts = Path(path).parts
    if parts[1] in ("dev", "proc", "sys") or any(part in CACHES for part in parts):
        return False
    is_here = path.startswith(os.getcwd() + os.sep)
    return is_here or not f"{path}{os.sep}".startswith(TEMPORARY)


def before_optimizer(convert: Callable[[torch.nn.Module], None], names: list[str]) -> None:
    """Convert the modules whose parameters an optimizer gets, before it exists.

    Args:
        convert: is called once for each.
        names: of the classes that the training calls.
    """
    original = torch.optim.Optimizer.__init__
    converted: list[torch.nn.Module] = []

    @functools.wraps(original)
    def construct(optimizer, params, *args, **kwargs):
        params = as_groups(params) or params
        wanted = {*map(id, parameters_in(params))} if isinstance(params, list) else set()
        for module in find_roots(wanted, names):
            if not any(module is one for one in converted):
                converted.append(module)
                convert(module)
        return original(optimizer, params, *args, **kwargs)

    torch.optim.Optimizer.__init__ = construct


def as_groups(params: Any) -> list[dict[str, Any]]:
    """Return an optimizer's first argument as groups of parameters, which can be read twice."""
    if params is None or isinstance(params, torch.Tensor):
        return []
    rows = [*params]
    groups = rows if rows and isinstance(rows[0], dict) else [{"params": rows}]
    copies = []
    for group in groups:
        inside = group["params"]
        inside = [inside] if isinstance(inside, torch.Tensor) else [*inside]
        copies.append(group | {"params": inside})
    return copies


def parameters_in(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Return the parameters of groups; they may have names."""
    rows = [row for group in groups for row in group["params"]]
    return [row[1] if isinstance(row, tuple) else row for row in rows]


def find_roots(parameters: set[int], names: list[str]) -> list[torch.nn.Module]:
    """Return the outermost live modules of which an optimizer gets all trainable parameters.

    Only those whose class has one of these names.
    """
    inside = []
    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    for module in [module for module in modules if type(module).__name__ in names]:
        trainable = {id(p) for p in module.parameters() if p.requires_grad}
        if trainable and trainable <= parameters:
            inside.append(module)
    children = {id(child) for module in inside for child in module.modules() if child is not module}
    return [module for module in inside if id(module) not in children]


def change_call(module: torch.nn.Module, around: Callable[..., Any]) -> None:
    """Let `around(call, module, args, kwargs)` replace this module's call.

    By a subclass, not by a pair of hooks: these leave a context open after an error.
    """
    kind = type(module)

    def call(self, *args, **kwargs):
        return around(functools.partial(kind.__call__, self), self, args, kwargs)

    values = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (kind,), values)


def to_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a bf16 tensor in float32, others as they are."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def to_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return images in channels_last, others as they are."""
    if tensor.dim() != 4 or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
