"""Profile a training script: run it with the probe, and read what its processes wrote."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainspeed import run
from trainspeed.recorder import OBSERVED, REST, TIMED, TRACED, Plan
from trainspeed.timing import quartiles


class ProfileError(ValueError):
    """Nothing can be said about a script; the message has the reason and the next best step."""


@dataclass
class Profile:
    """What one process of a training script did; times are in seconds per iteration."""

    values: dict[str, Any]
    folder: Path

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """The timed iterations, as columns.

        Those in which a loop over a DataLoader began are left out, unless all did.
        """
        iterations = self.values["iterations"]
        kept = [it for it in iterations if it["kind"] == TIMED]
        if len(kept) < 3:
            kept = [it for it in iterations if it["kind"] in (TIMED, REST)]
        if len(kept) < 3:
            kept = [it for it in iterations if it["kind"] not in (TRACED, OBSERVED)][1:]
        inside = [it for it in kept if not it["loops"]]
        kept = inside if len(inside) >= max(2, len(kept) // 3) else kept
        names = kept[0] if kept else {}
        columns = {n: np.array([it[n] for it in kept]) for n in names if n != "kind"}
        if kept:
            columns["seconds"] = columns["end_s"] - columns["begin_s"]
        return columns

    @property
    def count(self) -> int:
        """The number of iterations that were timed."""
        return len(self.rows.get("seconds", ()))

    def quartiles(self, name: str = "seconds") -> tuple[float, float, float]:
        """Return the quartiles of a column."""
        return quartiles(self.rows[name])

    @property
    def step_s(self) -> float:
        """The mean over the timed iterations without the slowest and the fastest tenth.

        A mean, because parts add up, and some work is done only in every n-th iteration.
        """
        return trimmed_mean(self.rows["seconds"])

    def mean(self, name: str) -> float:
        """Return the mean of a column over the timed iterations."""
        return float(np.mean(self.rows[name]))

    def median(self, name: str) -> float:
        """Return the median of a column.

        A loop that fetches a batch ahead has fewer in the last iteration of an epoch.
        """
        return float(np.median(self.rows[name]))

    @property
    def main_forward(self) -> dict[str, Any]:
        """The forward pass with the most parameters; {} if there is none.

        Augmentations and losses are modules, too, and may be called before the network.
        """
        return max(self.values["forwards"], key=lambda row: row["parameters"], default={})

    @property
    def machine(self) -> dict[str, Any]:
        """Device, cores and settings."""
        return self.values["machine"]

    @property
    def is_gpu(self) -> bool:
        """Whether the script used an accelerator."""
        return self.machine["device"] != "cpu"

    @cached_property
    def trace(self) -> Any:
        """The trace of a few iterations as tables; None without one."""
        from trainspeed.traces import TraceError, read

        name = self.values["trace"]
        if not name:
            return None
        try:
            return read(self.folder / name)
        except TraceError:
            return None

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The stages of loading by their share: stage, line, share."""
        rows = [*self.values["stages"]]
        for path in self.folder.glob("worker-*.json"):
            rows += json.loads(path.read_text())
        totals: dict[str, dict[str, int]] = {}
        for row in rows:
            lines = totals.setdefault(row["stage"], {})
            lines[row["line"]] = lines.get(row["line"], 0) + row["count"]
        total = sum(sum(lines.values()) for lines in totals.values())
        stages = [
            {
                "stage": stage,
                "line": max(lines, key=lines.get),
                "share": sum(lines.values()) / total,
            }
            for stage, lines in totals.items()
        ]
        return sorted(stages, key=lambda row: -row["share"])


def trimmed_mean(values: np.ndarray) -> float:
    """Return the mean without the smallest and the largest tenth."""
    values = np.sort(values)
    cut = len(values) // 10
    return float(np.mean(values[cut : len(values) - cut]))


def read_processes(folder: Path) -> list[dict[str, Any]]:
    """Return what the training processes wrote: those with the most iterations, by rank."""
    processes = []
    for path in sorted(folder.glob("process-*.json")):
        values = json.loads(path.read_text())
        if values["iterations"] or values["loaders"] or values["optimizers"]:
            processes.append(values)
    if not processes:
        return []
    most = max(processes, key=lambda values: len(values["iterations"]))
    same = [v for v in processes if v["world_size"] == most["world_size"]]
    by_rank: dict[int, dict[str, Any]] = {}
    for values in sorted(same, key=lambda values: len(values["iterations"])):
        alike = [v for v in same if v["rank"] == values["rank"] and v["rule"] == values["rule"]]
        by_rank[values["rank"]] = values | {"processes": len(alike)}
    return [by_rank[rank] for rank in sorted(by_rank)]


def is_complete(folder: Path) -> bool:
    """Return whether all ranks have measured what they were to measure."""
    ranks = [values for values in read_processes(folder) if values["state"] == REST]
    return bool(ranks) and len(ranks) >= ranks[0]["world_size"]


def load(folder: Path) -> list[Profile]:
    """Return the profile of each rank.

    Raises:
        ProfileError: no process trained, or it ended too early.
    """
    ranks = read_processes(folder)
    if not ranks:
        raise ProfileError(
            "no iteration was seen: the command has no optimizer step, no backward pass and no "
            "loop over a DataLoader. If it trains in a different way, use `trainspeed.Watch` in "
            "its loop"
        )
    profiles = [Profile(values, folder) for values in ranks]
    if min(profile.count for profile in profiles) < 2:
        count = len(ranks[0]["iterations"])
        raise ProfileError(
            f"the script ended after {count} iteration{'s'[: count != 1]}, and 5 are needed "
            f"for times: let it train for longer"
        )
    return profiles


def profile(
    command: Sequence[str],
    show: Callable[[list[Profile]], None],
    *,
    stop: bool = False,
    **plan: Any,
) -> int:
    """Run a command with the probe; call `show` when its iterations have been measured.

    Args:
        command: as in a terminal: ["python", "train.py"], or "torchrun", ….
        show: is called once with a profile for each rank.
        stop: end the command then. Otherwise it goes on to its end.
        plan: fields of `Plan`.

    Returns:
        The command's exit code.

    Raises:
        ProfileError: nothing can be said; the exit code is in its `code`.
    """
    command = run.check_command(command)
    with tempfile.TemporaryDirectory(prefix="trainspeed-") as folder:
        path, shown = Path(folder), []

        def when_ready() -> bool:
            shown.append(True)
            show(load(path))
            return stop

        with run.started(command, run.environment(Plan(folder, **plan))) as process:
            code = run.watch(process, lambda: is_complete(path), when_ready)
        if not shown:
            try:
                show(load(path))
            except ProfileError as error:
                has_begun = code == 0 or read_processes(path)
                reason = f", and {error}" if has_begun else " before it trained"
                ended = ProfileError(f"the command ended with code {code}{reason}")
                ended.code = code
                raise ended from None
    return code
