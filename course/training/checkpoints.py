"""Checkpoints: save everything that changes from step to step, and resume from it."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as DDP

from course._compat import tree_map_only
from course.data.loader import skip
from course.runs import restarts
from course.runs.files import complete_file
from course.training import randomness
from course.training.rank_group import any_rank

if TYPE_CHECKING:
    from course.training.recorder import Recorder

KEPT = 2  # the newest one may turn out to be damaged
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # before Slurm's SIGKILL, or a time limit
SIGNAL_STEPS = 8  # between two comparisons of ranks' signals on accelerators, which must wait
# Settings that must be those of the checkpoint: those that a schedule depends on only with one.
FIXED = ("model", "optimizer", "schedule", "batch_size", "steps", "data", "seed")
FIXED += ("context", "layers", "heads", "width", "vocabulary", "vocabulary_multiple")
WARMUP = ("lr_warmup", "lr_warmup_epochs")
FIXED_BY_SCHEDULE = ("lr", "lr_batch", *WARMUP, "lr_step_size", "lr_gamma")
ENDLESS = ("", "step")  # schedules that do not depend on the number of epochs
OUR_NAME = re.compile(r"step-\d+(\.pt)?")  # `file_name`, and folders of async_save


def file_name(step: int) -> str:
    """Return the name of the checkpoint after this number of steps."""
    return f"step-{step:06}.pt"


def newest(folder: Path) -> dict[str, Any] | None:
    """Load the newest complete checkpoint into host memory, or return None if there is none.

    A damaged checkpoint is named on standard error, and the previous one is tried.
    """
    return next((state for _, state in _readable(folder)), None)


def _readable(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Load one checkpoint after another, the newest first, and name those that are damaged."""
    for path in sorted(_paths(folder), key=_age, reverse=True):
        try:
            state = _read(path)
        except Exception as error:  # incomplete: each reader raises its own errors
            _report_damage(path, error)
        else:
            yield path, state


def _report_damage(path: Path, error: BaseException) -> None:
    reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
    print(f"checkpoint {path.name} is damaged: {reason}", file=sys.stderr, flush=True)


def _last_line(error: BaseException) -> str:
    """Return the cause that a CheckpointException has after the tracebacks of all ranks."""
    return str(error).strip().splitlines()[-1]


def _paths(folder: Path) -> list[Path]:
    """Return all checkpoints, including damaged ones; names of drafts begin with a dot."""
    return [path for path in folder.glob("*") if not path.name.startswith(".")]


def _age(path: Path) -> tuple[bool, int, str]:
    """Return a sort key: by name, step 1,000,000 would come before step 999,999."""
    return bool(OUR_NAME.fullmatch(path.name)), restarts.step_of(path) or 0, path.name


def _read(path: Path) -> dict[str, Any]:
    """Load a checkpoint that torch.save or async_save wrote.

    Raises:
        Exception: it is incomplete; readers raise errors of all kinds.
    """
    if path.is_file():
        return torch.load(path, map_location="cpu", weights_only=True)
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    if not (path / restarts.METADATA).exists():
        raise FileNotFoundError(f"it was never finished: no {restarts.METADATA}")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "checkpoint.pt"
        try:
            dcp_to_torch_save(path, file)
        except CheckpointException as error:  # it is not an Exception, which callers catch
            raise OSError(_last_line(error)) from error
        saved = torch.load(file, map_location="cpu", weights_only=False)
    if "tensors" not in saved:
        raise ValueError("it has the shards of several ranks: resume it with shard set")
    structure = pickle.loads(saved["rest"])
    return tree_map_only(_Placeholder, lambda tensor: saved["tensors"][tensor.name], structure)


def remove_old(folder: Path, keep: int = KEPT) -> None:
    """Delete all but the newest checkpoints that have a `file_name`; a best.pt stays."""
    ours = [path for path in _paths(folder) if OUR_NAME.fullmatch(path.name)]
    for path in sorted(ours, key=_age)[:-keep]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def save(state: dict[str, Any], folder: Path, step: int) -> None:
    """Write a checkpoint, which is complete or absent, and remove old ones."""
    with complete_file(folder / file_name(step)) as file:
        torch.save(state, file)
    remove_old(folder)


@dataclass(frozen=True)
class _Placeholder:
    """Replaces a tensor in a state."""

    name: str


def _without_tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Separate a state into its tensors and, in one piece, everything else.

    async_save would turn all keys into text, so that an optimizer would not find its state under
    0, 1, 2, and would omit empty dicts.
    """
    tensors: dict[str, torch.Tensor] = {}

    def replace(tensor: torch.Tensor) -> _Placeholder:
        placeholder = _Placeholder(str(len(tensors)))
        tensors[placeholder.name] = tensor
        return placeholder

    rest = pickle.dumps(tree_map_only(torch.Tensor, replace, state))
    return {"tensors": tensors, "rest": rest}


class BackgroundWriter:
    """Saves as a script's own `save(state, folder, step)` does, but while training continues.

    The state is copied to the host at once, and a thread writes the copy
    (`torch.distributed.checkpoint.async_save`). The next checkpoint waits for the thread, so that
    all copies use the same pages: new, unpinned pages take longer than writing to the disk.

    All ranks create it, after the process group.
    """

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        self._pending: Any = None
        self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        self._folder = Path()
        # async_save requires a group for host memory, and a training's on GPUs has only NCCL.
        is_group = distributed.is_initialized()
        self.group = distributed.new_group(backend="gloo") if is_group else None
        # One process saves on purpose, with or without a process group.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        atexit.register(self.wait)

    def __call__(self, state: dict[str, Any], folder: Path, step: int) -> None:
        """Begin to write a checkpoint."""
        from torch.distributed.checkpoint import async_save

        self.wait()
        self._folder = folder
        self._pending = async_save(
            _without_tensors(state),
            checkpoint_id=folder / file_name(step).removesuffix(".pt"),
            async_stager=self._stager,
            process_group=self.group,
            no_dist=True,
        )

    def wait(self) -> None:
        """Wait until everything is on the disk. Raises the thread's error, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            remove_old(self._folder)


class Checkpoints:
    """Saves a run every `cfg.save_every` steps and when it must end, and resumes it.

    Without `cfg.save_every` it does nothing. All ranks call its methods, in the same order.

    Args:
        parts: by name, whatever has a `state_dict()` that changes from step to step, or None.
            "model" is the network without wrappers.
    """

    def __init__(self, run: Recorder, device: torch.device, parts: dict[str, Any]) -> None:
        self.run, self.config, self.device = run, run.config, device
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.first_epoch = 0  # from which to train on; perhaps it only lacks its validation
        self._signals: list[int] = []  # that ask this process to end
        self._settings: dict[str, Any] = {}
        self._writer = BackgroundWriter() if self.config.async_save else None
        for number in SIGNALS if self.config.save_every else ():
            signal.signal(number, lambda number, _: self._signals.append(number))

    def resume(self, batches: Any, model: torch.nn.Module) -> int:
        """Restore the newest checkpoint, and let the batches continue where it was saved.

        Call it last before training, because it restores the states of random numbers.

        Args:
            batches: of training, from `course.data.loaders`.
            model: the network as it is called, with its wrappers.

        Returns:
            The number of completed steps; 0 without a checkpoint.

        Raises:
            ValueError: the checkpoint is of a different training; the message names the setting.
                Or there are only damaged ones: training must not begin again without being asked.
        """
        cfg = self.config
        if not cfg.save_every:
            return 0
        names = [*FIXED, *FIXED_BY_SCHEDULE, "epochs", "ema"]
        self._settings = {name: getattr(cfg, name) for name in names}
        self._settings["training images"] = _image_count(batches)
        saved = self._newest()
        if not saved and (damaged := _paths(self.run.checkpoints)):
            raise ValueError(
                f"none of {len(damaged)} checkpoints in {self.run.checkpoints} can be read "
                f"with shard={cfg.shard!r}: set the one that saved, copy them again, or --rerun"
            )
        if not saved:
            return 0
        self._check(saved)
        if cfg.deterministic and isinstance(model, DDP):
            self._settle_buckets(model)
        self._restore(saved)
        randomness.set_states(saved["random"], self.device)
        step = saved["step"]
        self.first_epoch = max(step - 1, 0) // cfg.steps
        skip(batches, step % cfg.steps * (cfg.batch_size * cfg.tensor // self.run.world_size))
        if self.run.rank == 0:
            print(f"continues from the checkpoint after step {step}", flush=True)
        return step

    def _newest(self) -> dict[str, Any] | None:
        """Load the checkpoint that rank 0 chooses, or return None if there is none."""
        folder, chosen, saved = self.run.checkpoints, [""], None
        if self.run.rank == 0:
            if self.run.folder:
                restarts.remove_unfinished(self.run.folder)
            path, saved = next(_readable(folder), (Path(), None))
            chosen = [path.name]
        if distributed.is_initialized():
            distributed.broadcast_object_list(chosen)
        if self.run.rank and chosen[0]:
            saved = _read(folder / chosen[0])
        return saved

    def _restore(self, saved: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            if state := saved.get(name):  # a disabled scaler has none
                part.load_state_dict(state)

    def _check(self, saved: dict[str, Any]) -> None:
        """Refuse a checkpoint of a different training, whose state would be wrong or ignored.

        Raises:
            ValueError: a setting differs; the message names it.
        """
        known = saved.get("settings", {})
        has_schedule = self.config.schedule or any(
            known.get(x) or self._settings[x] for x in WARMUP
        )
        fixed = [*FIXED, *(FIXED_BY_SCHEDULE if has_schedule else ()), "training images"]
        if self.config.schedule not in ENDLESS:
            fixed.append("epochs")
        if bool(self.config.ema) != bool(known.get("ema", self.config.ema)):
            fixed.append("ema")
        for name in fixed:
            own, other = self._settings[name], known.get(name, self._settings[name])
            if own != other:
                raise ValueError(
                    f"{name}={own!r}: the checkpoint after step {saved['step']} was saved with "
                    f"{name}={other!r}, and training cannot continue from it otherwise. Choose "
                    f"{name}={other!r}, or start a new training (--rerun)"
                )

    def _settle_buckets(self, model: DDP) -> None:
        """Let DDP group gradients as it did in the process that saved.

        It groups them again after a process's first step, in the order in which they were ready.
        With three ranks or more, different groups add up in a different order.
        """
        cfg, px = self.config, self.config.image_px
        count = cfg.micro_batch or cfg.batch_size // self.run.world_size
        if tokens := cfg.tokens:  # as many as in a step, or it would be compiled once more
            inputs = [torch.zeros(count, tokens, dtype=torch.long, device=self.device)] * 2
        else:
            inputs = [torch.zeros(count, 3, px, px, device=self.device)]
        if self.config.channels_last:
            inputs = [images.to(memory_format=torch.channels_last) for images in inputs]
        model.train()(*inputs).sum().backward()
        model.zero_grad(set_to_none=True)

    def ends_after(self, step: int) -> bool:
        """Save if this is due after a step; return True if this process must end here."""
        cfg = self.config
        if step % cfg.steps == 0 and (cfg.save_every or cfg.deterministic):
            self._share_buffers()
        if not cfg.save_every:
            return False
        is_cheap = self.device.type == "cpu" or self.run.world_size == 1
        ends = (is_cheap or step % SIGNAL_STEPS == 0) and any_rank(self._signals, self.device)
        is_last = step >= cfg.epochs * cfg.steps
        if ends or is_last or step % cfg.save_every == 0:
            self._save(step, is_last=ends or is_last)
        if ends or is_last:
            self._wait()
        if ends:
            self.run.mark_interrupted()
        return ends

    def _share_buffers(self) -> None:
        """Give all ranks rank 0's means and variances, so that they validate what it saves."""
        if not distributed.is_initialized():
            return
        for part in self.parts.values():
            for buffer in part.buffers() if hasattr(part, "buffers") else ():
                distributed.broadcast(buffer, 0)

    def _state(self, step: int, *left_out: str) -> dict[str, Any]:
        """Return what is to be saved, without some parts."""
        parts = {name: part for name, part in self.parts.items() if name not in left_out}
        state = {name: part.state_dict() for name, part in parts.items()}
        random = randomness.get_states(self.device)
        return state | {"step": step, "random": random, "settings": self._settings}

    def _save(self, step: int, is_last: bool) -> None:
        state = self._state(step)
        if self.run.rank == 0:
            (self._writer or save)(state, self.run.checkpoints, step)

    def _wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        if self._writer:
            self._writer.wait()

    def keep_best(self, net: torch.nn.Module) -> None:
        """Write best.pt if the last epoch has the highest accuracy, or lowest loss, so far.

        Args:
            net: the network that was validated.
        """
        if not self.config.save_every:
            return
        epochs = self.run.values["epochs"]  # of all epochs only on rank 0
        *earlier, last = [row.get("val_top1", -row.get("val_loss", 0)) for row in epochs]
        is_best = self.run.rank == 0 and last > max(earlier, default=-math.inf)
        if not any_rank(is_best, self.device):
            return
        state = {"model": self._weights(net), "epoch": len(epochs)} | epochs[-1]
        if self.run.folder:
            with complete_file(self.run.folder / restarts.BEST) as file:
                torch.save(state, file)

    def _weights(self, net: torch.nn.Module) -> dict[str, torch.Tensor]:
        return net.state_dict()


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of a network that ranks share: each writes its part (distributed.checkpoint).

    They can be loaded by another number of ranks. "model" and "optimizer" must be among the parts.
    With `cfg.async_process`, a second process of each rank writes it, whose Python keeps none from
    training; one rank that has no process group writes in a thread instead.
    """

    def __init__(self, run: Recorder, device: torch.device, parts: dict[str, Any]) -> None:
        super().__init__(run, device, parts)
        self._pending: Any = None
        self._options: dict[str, Any] = {}  # of async_save
        if self._writer:
            self._options["process_group"] = self._writer.group  # apart from the training's
        if self.config.async_process and distributed.is_initialized():
            self._options |= _process_options()

    def _sharded(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, state = get_state_dict(self.parts["model"], self.parts["optimizer"])
        return {"model": weights, "optimizer": state}

    def _newest(self) -> dict[str, Any] | None:
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        folder, names = self.run.checkpoints, [[]]
        if self.run.rank == 0:
            if self.run.folder:
                restarts.remove_unfinished(self.run.folder)
            names = [[path.name for path in sorted(_paths(folder), key=_age, reverse=True)]]
        if distributed.is_initialized():
            distributed.broadcast_object_list(names)
        for name in names[0]:
            try:
                dcp.load(rest := {"rest": b""}, checkpoint_id=folder / name)
                self._check(others := pickle.loads(rest["rest"]))  # or all would seem damaged
                dcp.load(state := self._sharded(), checkpoint_id=folder / name)
            except CheckpointException as error:  # on all ranks
                _report_damage(folder / name, OSError(_last_line(error)))
            else:
                return state | others
        return None

    def _restore(self, saved: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        weights, state = saved.pop("model"), saved.pop("optimizer")
        set_state_dict(
            self.parts["model"],
            self.parts["optimizer"],
            model_state_dict=weights,
            optim_state_dict=state,
        )
        super()._restore(saved)

    def _save(self, step: int, is_last: bool) -> None:
        from torch.distributed import checkpoint as dcp

        self._wait()
        rest = pickle.dumps(self._state(step, "model", "optimizer"))
        state, place = self._sharded() | {"rest": rest}, self.run.checkpoints
        path = place / file_name(step).removesuffix(".pt")
        if self.config.async_save and not is_last:  # or SIGKILL might overtake a first process
            with _deferred_signals():
                self._pending = dcp.async_save(state, checkpoint_id=path, **self._options)
        else:
            dcp.save(state, checkpoint_id=path)
            self._remove_old()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self._remove_old()

    def _remove_old(self) -> None:
        if self.run.rank == 0:
            remove_old(self.run.checkpoints)

    def _weights(self, net: torch.nn.Module) -> dict[str, torch.Tensor]:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
        )

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(net, options=options)


def _process_options() -> dict[str, Any]:
    """Return the options of async_save for a process that writes from shared memory."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    # It warns of each shard, because its own group comes after the mesh.
    os.environ.setdefault("TORCH_LOGS", "-torch.distributed.device_mesh")
    pinned = torch.cuda.is_available()
    stager = DefaultStager(StagingOptions(pinned, True, False, False))
    atexit.register(stager.close)
    atexit.register(_end_writers)
    return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS, "async_stager": stager}


def _end_writers() -> None:
    """End async_save's processes: multiprocessing would wait for them after a blocked SIGTERM."""
    for child in multiprocessing.active_children():
        if isinstance(child, multiprocessing.get_context("spawn").Process):
            child.kill()


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Let threads that begin here, and their processes, leave SIGNALS to the main thread.

    Slurm sends them to all processes, and a writer must outlive the step that saves because of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _image_count(batches: Any) -> int | None:
    """Return the number of training images; None if they are synthetic."""
    images = getattr(batches, "dataset", None)
    return len(images) if isinstance(images, Sized) else getattr(images, "count", None)
