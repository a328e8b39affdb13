"""Checkpoints of a run: find the newest one that is complete, and write one in the background."""

from __future__ import annotations

import atexit
import pickle
import re
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from course._compat import tree_map_only
from course.runs import restarts

KEPT = 2  # the newest one may turn out to be damaged
OUR_NAME = re.compile(r"step-\d+(\.pt)?")  # `file_name`, and folders of async_save


def file_name(step: int) -> str:
    """Return the name of the checkpoint after this number of steps."""
    return f"step-{step:06}.pt"


def newest(folder: Path) -> dict[str, Any] | None:
    """Load the newest complete checkpoint into host memory, or return None if there is none.

    A damaged checkpoint is named on standard error, and the previous one is tried.
    """
    for path in sorted(_paths(folder), key=_age, reverse=True):
        try:
            return _read(path)
        except Exception as error:  # incomplete: each reader raises its own errors
            reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
            message = f"checkpoint {path.name} is damaged, the one before it is used: {reason}"
            print(message, file=sys.stderr, flush=True)
    return None


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
            raise OSError(str(error)) from error
        saved = torch.load(file, map_location="cpu", weights_only=False)
    structure = pickle.loads(saved["rest"])
    return tree_map_only(_Placeholder, lambda tensor: saved["tensors"][tensor.name], structure)


def remove_old(folder: Path, keep: int = KEPT) -> None:
    """Delete all but the newest checkpoints that have a `file_name`; a best.pt stays."""
    ours = [path for path in _paths(folder) if OUR_NAME.fullmatch(path.name)]
    for path in sorted(ours, key=_age)[:-keep]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


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
    """

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        self._pending: Any = None
        self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        self._folder = Path()
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
            no_dist=True,
        )

    def wait(self) -> None:
        """Wait until everything is on the disk. Raises the thread's error, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            remove_old(self._folder)
