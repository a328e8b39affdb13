"""`export`: copy finished runs to TensorBoard, Trackio or Weights & Biases."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from course import Run
from course.runs import PROJECT, runs_root

COMMANDS = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": "TRACKIO_DIR={folder} trackio show --project course",
    "wandb": "wandb sync {folder}/wandb/offline-run-*   # sends them to wandb.ai: only if you may",
}
TOOLS = tuple(COMMANDS)
REMOVED_VARIABLES = ("TRACKIO_", "WANDB_", "HF_")  # with them, a tool could send data
FOLDER = "exports"  # in the folder of all runs


@dataclass(frozen=True)
class Exported:
    """Runs that were exported, and how to view them."""

    to: str
    folder: Path
    runs: tuple[Run, ...]

    @property
    def look(self) -> str:
        """The command that shows them, for a terminal in the project's folder."""
        inside = self.folder.is_relative_to(PROJECT)
        folder = self.folder.relative_to(PROJECT) if inside else self.folder
        return COMMANDS[self.to].format(folder=shlex.quote(str(folder)))

    def __repr__(self) -> str:
        count = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}"
        return f"{count} exported to {self.to}. To view them, in a terminal:\n{self.look}"


def export(runs: Run | Iterable[Run], to: str, folder: str | Path = "") -> Exported:
    """Export runs: config, results, tags, and the values of each step and epoch.

    Runs that were exported earlier are replaced. Nothing is sent over the network: tools that could
    upload only write files.

    Args:
        to: "tensorboard", "trackio" or "wandb".
        folder: for the tool's files; by default exports/TOOL in the folder of all runs.

    Raises:
        ValueError: the tool is unknown or not installed; there is no run, or one is not over; the
            folder would overwrite a run; or the tool did not accept the runs.
    """
    runs = (runs,) if isinstance(runs, Run) else tuple(runs)
    place = Path(folder or runs_root() / FOLDER / to).expanduser().resolve()
    _check(runs, to, place)
    place.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        [sys.executable, "-P", "-m", "labs.gpu.trackers", to, str(place)],
        input=pickle.dumps(runs),
        env=_offline(place),
        cwd=place,  # wandb reads its settings where it works
        capture_output=True,
    )
    if process.returncode:
        error = (
            process.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        )[-1]
        raise ValueError(f"{to} did not take the runs: {error}")
    return Exported(to, place, runs)


def _check(runs: tuple[Run, ...], to: str, place: Path) -> None:
    if to not in TOOLS:
        raise ValueError(f"no tool {to!r} to export to: choose {', '.join(TOOLS)}")
    spec = find_spec(to)
    if spec is None or spec.origin is None:  # a folder of this name looks like a package, too
        raise ValueError(
            f"{to} is not installed: pip install {to}, or pip install '.[tracking]' in the "
            f"project's folder for all three"
        )
    if not runs:
        raise ValueError("no run to export: name some, or launch one; course runs lists them")
    if unfinished := [repr(run) for run in runs if run.record is None]:
        raise ValueError(f"not over yet: {', '.join(unfinished)}. Only records are exported")
    for run in runs:  # a tool names a run's folder like the run
        folder = run.folder.resolve()
        if place.is_relative_to(folder) or (place / run.name).resolve() == folder:
            raise ValueError(
                f"{place} contains {run.name}: choose a different folder for the tool's "
                f"files, or none; by default they go to {runs_root() / FOLDER}"
            )


def _offline(folder: Path) -> dict[str, str]:
    """Return an environment in which a tool sends nothing, and writes to this folder only."""
    variables = {key: v for key, v in os.environ.items() if not key.startswith(REMOVED_VARIABLES)}
    return variables | {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRACKIO_DIR": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": str(folder),
        "WANDB_CONFIG_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder),
    }
