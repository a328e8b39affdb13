"""`export`: hand finished runs on to a tool that people know. The record stays the truth."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from course.runs.run import PROJECT, Run, runs_root

TOOLS = ("tensorboard", "trackio", "wandb")
LOOK = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": "TRACKIO_DIR={folder} trackio show --project course",
    "wandb": "wandb sync {folder}/wandb/offline-run-*   # sends them to wandb.ai: only if you may",
}
OWN = ("TRACKIO_", "WANDB_", "HF_")  # variables of theirs, by which they could send things off
FOLDERS = "exports"  # in the folder of all runs


class ExportError(RuntimeError):
    """A tool did not take the runs; the message holds its last words."""


@dataclass(frozen=True)
class Exported:
    """Where runs were handed on to, and how to look at them there."""

    to: str
    folder: Path
    runs: tuple[Run, ...]

    @property
    def look(self) -> str:
        """The command that shows them, for a terminal in the project's folder."""
        inside = self.folder.is_relative_to(PROJECT)
        folder = self.folder.relative_to(PROJECT) if inside else self.folder
        return LOOK[self.to].format(folder=shlex.quote(str(folder)))

    def __repr__(self) -> str:
        many = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}"
        return f"{many} handed on to {self.to}. To look at them, in a terminal:\n{self.look}"


def export(runs: Run | Iterable[Run], to: str, folder: str | Path = "") -> Exported:
    """Hand runs on: config, figures, tags, and what each step and each epoch was.

    Runs that the folder has already are written anew, so that none is there twice. No tool is let
    into the network: those that could upload write files only.

    Args:
        to: "tensorboard", "trackio" or "wandb".
        folder: where their files go; by default exports/TOOL in the folder of all runs.

    Raises:
        ValueError: no such tool, or it is not installed; no run, or one that is not over; the
            folder is a run's own, or the one that a run lies in.
        ExportError: the tool did not take them.
    """
    chosen = (runs,) if isinstance(runs, Run) else tuple(runs)
    _refuse(chosen, to)
    place = Path(folder or runs_root() / FOLDERS / to).expanduser().resolve()
    _refuse_own(chosen, place)
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "course.runs.trackers", to, str(place)],
        input="\n".join(str(run.folder) for run in chosen),
        env=_offline(place),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ExportError(f"{to} did not take the runs: {done.stderr.strip()[-600:]}")
    return Exported(to, place, chosen)


def _refuse(runs: tuple[Run, ...], to: str) -> None:
    if to not in TOOLS:
        raise ValueError(f"no tool {to!r} to export to: choose {', '.join(TOOLS)}")
    if not _is_installed(to):
        raise ValueError(
            f"{to} is not installed: pip install {to}, or pip install '.[tracking]' in the "
            f"project's folder for all three"
        )
    if not runs:
        raise ValueError("no run to export: name some, or launch one; course runs lists them")
    if unfinished := [repr(run) for run in runs if run.record is None]:
        raise ValueError(f"not over yet: {', '.join(unfinished)}. Only records are handed on")


def _refuse_own(runs: tuple[Run, ...], place: Path) -> None:
    """A tool's files of a run are of its name: in the runs' folder they would lie in its own."""
    for run in runs:
        own = run.folder.resolve()
        if place.is_relative_to(own) or (place / run.name).resolve() == own:
            raise ValueError(
                f"{place} holds {run.name} itself: choose a folder of its own for the tool's "
                f"files, or none; by default they go to {runs_root() / FOLDERS}"
            )


def _is_installed(tool: str) -> bool:
    """A folder of its name alone, into which it once wrote, looks like a package, too."""
    found = find_spec(tool)
    return found is not None and found.origin is not None


def _offline(folder: Path) -> dict[str, str]:
    """The environment of a tool that can send nothing, and writes into the folder alone."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    home = str(folder)
    return kept | {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRACKIO_DIR": home,
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": home,
        "WANDB_CONFIG_DIR": home,
        "WANDB_DATA_DIR": home,
    }
