"""Checkpoints of a run: which are there, which of them are whole, and one written by a thread."""

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
from torch.utils._pytree import tree_map_only

from course.runs.restarts import CHECKPOINT, CHECKPOINTS

KEPT = 2  # the last one may turn out to be damaged
NAME = re.compile(r"\d+")  # of which the last in a name is the number of steps
OURS = re.compile(r"step-\d+(\.pt)?")  # what `named` says, and async_save's folders
METADATA = ".metadata"  # what async_save writes last into a checkpoint's folder


def named(step: int) -> str:
    """The file of a checkpoint after so many steps."""
    return f"step-{step:06}.pt"


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read whole, on the host; None where there is none.

    One that cannot is named on standard error, and the one before it is taken.
    """
    for path in sorted(found(folder), key=_age, reverse=True):
        try:
            return read(path)
        except Exception as error:  # cut short, in whatever way: any reader's own
            why = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
            print(f"checkpoint {path.name} is damaged, the one before it is used: {why}",
                  file=sys.stderr, flush=True)  # fmt: skip
    return None


def _age(path: Path) -> tuple[bool, int, str]:
    """What checkpoints sort by: as text, step 1,000,000 would come before step 999,999."""
    return bool(OURS.fullmatch(path.name)), step_of(path) or 0, path.name


def step_of(path: Path) -> int | None:
    """The steps that a checkpoint's name tells; None where it tells none."""
    numbers = NAME.findall(path.stem)
    return int(numbers[-1]) if numbers else None


def found(folder: Path) -> list[Path]:
    """All that are there by their final names, damaged ones too; drafts begin with a dot."""
    return [path for path in folder.glob("*") if not path.name.startswith(".")]


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, whether torch.save wrote it or async_save.

    Raises:
        Exception: it is not whole; readers have errors of all kinds.
    """
    if path.is_file():
        return torch.load(path, map_location="cpu", weights_only=True)
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    if not (path / METADATA).exists():
        raise FileNotFoundError(f"it was never finished: no {METADATA}")
    with tempfile.TemporaryDirectory() as place:  # as one file, since nothing is allocated yet
        whole = Path(place) / "whole.pt"
        try:
            dcp_to_torch_save(path, whole)
        except CheckpointException as error:  # no Exception, which callers catch
            raise OSError(str(error)) from error
        saved = torch.load(whole, map_location="cpu", weights_only=False)
    rest = pickle.loads(saved["rest"])
    return tree_map_only(_Place, lambda place: saved["tensors"][place.name], rest)


def remove_old(folder: Path, kept: int = KEPT) -> None:
    """Delete all but the last checkpoints, of those that `named` has named: a best.pt stays."""
    ours = [path for path in found(folder) if OURS.fullmatch(path.name)]
    for path in sorted(ours, key=_age)[:-kept]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_unfinished(run: Path) -> None:
    """Delete what a run has of checkpoints that are not whole: on a full disk they take the room.

    Drafts have names with a dot, and folders of torch.distributed.checkpoint no METADATA yet.
    """
    for path in [run / CHECKPOINT, *(run / CHECKPOINTS).glob("*")]:
        if path.is_dir() and not (path / METADATA).exists():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith("."):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Place:
    """Where in a state a tensor stood."""

    name: str


def _apart(state: dict[str, Any]) -> dict[str, Any]:
    """A state's tensors, and in one piece all else.

    async_save would turn all keys into text, so that an optimizer would not find its state under
    0, 1, 2 again; and leave out what is empty.
    """
    tensors: dict[str, torch.Tensor] = {}

    def taken(tensor: torch.Tensor) -> _Place:
        place = _Place(str(len(tensors)))
        tensors[place.name] = tensor
        return place

    rest = pickle.dumps(tree_map_only(torch.Tensor, taken, state))
    return {"tensors": tensors, "rest": rest}


class Background:
    """Saves as a script's own `save(state, folder, step)` does, but lets training go on meanwhile.

    The state is copied to the host at once; a thread writes the copy
    (`torch.distributed.checkpoint.async_save`). Before the next one it is waited for, so that
    all may be copied to the same pages: new ones, not pinned, take longer than the disk does.
    """

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        self._pending: Any = None
        self._copy = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        self._folder = Path()
        # It is meant: one process saves, whether or not it is one of a group.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        atexit.register(self.wait)

    def __call__(self, state: dict[str, Any], folder: Path, step: int) -> None:
        """Begin to write a checkpoint."""
        from torch.distributed.checkpoint import async_save

        self.wait()
        self._folder = folder
        place = folder / named(step).removesuffix(".pt")
        options = {"checkpoint_id": place, "async_stager": self._copy, "no_dist": True}
        self._pending = async_save(_apart(state), **options)

    def wait(self) -> None:
        """Come back when all is on the disk. Raises what the thread has raised."""
        pending, self._pending = self._pending, None  # what it has raised is raised once
        if pending is not None:
            pending.result()
            remove_old(self._folder)


def look(folder: Path) -> list[dict[str, Any]]:
    """What lies there, for a check: name, steps as the name has them, whether it can be read."""
    rows = []
    for path in sorted(folder.rglob("*")):
        inside = path.parent != folder and (path.parent / METADATA).exists()
        if inside or (path.is_dir() and not (path / METADATA).exists()):
            continue
        try:
            if path.is_file():  # a learner's own, with whatever is in it
                torch.load(path, map_location="cpu", weights_only=False)
            is_whole = True
        except Exception:
            is_whole = False
        rows.append({"name": path.name, "step": step_of(path), "whole": is_whole})
    return rows
