"""What is known of a run whose script is the learner's own: its iterations, timed from outside."""

from __future__ import annotations

import json

import numpy as np

from course.runs.ratio import RESAMPLES, ratio
from course.runs.run import Run
from trainspeed.ratio import Ratio


def is_own(run: Run) -> bool:
    """Return whether the run's script reads no config, but arguments."""
    return run.launched.get("arguments") is not None


def iteration_times(run: Run) -> np.ndarray:
    """Return the seconds of each iteration of rank 0, without the first three.

    An iteration in which a loop over a DataLoader began is left out, unless all are such.
    """
    from trainspeed.profile import read_processes

    processes = [values for values in read_processes(run.folder) if values["rank"] == 0]
    rows = [row for values in processes for row in values["iterations"][3:]]
    rows = [row for row in rows if not row["loops"]] or rows
    return np.array([row["end_s"] - row["begin_s"] for row in rows])


def iteration_time_text(run: Run) -> str:
    """Describe the run's iterations in a few words; "" if none was seen."""
    from trainspeed.page import seconds

    times = iteration_times(run)
    if not len(times):
        return ""
    q1, median, q3 = np.percentile(times, [25, 50, 75])
    quartiles = f"quartiles {seconds(q1)} to {seconds(q3)}"
    return f"{seconds(median)} per iteration (median of {len(times)}, {quartiles})"


def speed_ratio(run: Run, against: Run) -> Ratio:
    """Return images/s over images/s, or iterations/s over iterations/s of own scripts.

    Raises:
        ValueError: a run measured nothing, or only one is of an own script.
    """
    if not is_own(run) and not is_own(against):
        return ratio(run, against)
    if is_own(run) != is_own(against):
        raise ValueError(
            f"{run.name} and {against.name}: one is of a script of your own, whose iterations are "
            f"timed, and one of the course's, whose images are: compare two of a kind"
        )
    times = [iteration_times(side) for side in (run, against)]
    for side, side_times in zip((run, against), times):
        if not len(side_times):
            raise ValueError(f"{side.name}: no iteration was seen; a ratio needs some of each run")
    random = np.random.default_rng(0)
    medians = [np.median(random.choice(t, (RESAMPLES, len(t))), axis=1) for t in times]
    low, high = np.percentile(medians[1] / medians[0], [2.5, 97.5])
    value = float(np.median(times[1]) / np.median(times[0]))
    return Ratio(value, float(low), float(high), steps=min(map(len, times)))


def source_changes(run: Run, against: Run) -> list[str]:
    """Return the lines in which the two scripts and requests differ, as a diff without context."""
    import difflib

    texts = [side.script.read_text(encoding="utf-8").splitlines() for side in (against, run)]
    arguments = [" ".join(side.launched.get("arguments") or ()) for side in (against, run)]
    settings = [json.dumps(vars(side.requested_config), default=str) for side in (against, run)]
    values = [json.loads(text) for text in settings]
    changes = [
        f"{key}: {values[0][key]} → {values[1][key]}"
        for key in values[0]
        if not is_own(run) and key != "rung" and values[0][key] != values[1].get(key)
    ]
    if arguments[0] != arguments[1]:
        changes.append(f"arguments: {arguments[0] or 'none'} → {arguments[1] or 'none'}")
    diff = difflib.unified_diff(*texts, lineterm="", n=0)
    return changes + [line for line in diff if not line.startswith(("---", "+++", "@@"))]
