"""Score the rules for kernels' names on labelled kernels.

The kernels are in kernels_labelled.csv, with the evidence for each label.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from course.analysis.tensor_cores.rules import NOT, UNKNOWN, USED, classify

LABELLED = Path(__file__).with_name("kernels_labelled.csv")


def labelled() -> pd.DataFrame:
    """Load the labelled kernels: kernel, truth, generation, evidence, library, part.

    The top of kernels_labelled.csv explains how they were chosen.
    """
    return read_commented(LABELLED)


def read_commented(path: Path) -> pd.DataFrame:
    """Read a CSV file whose first lines are comments."""
    lines = path.read_text().splitlines()
    return pd.read_csv(path, skiprows=sum(line.startswith("#") for line in lines))


def score(kernels: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compute precision and recall of the verdict "used" by part and generation.

    Columns: part, generation ("all": all together), kernels, used (that truly are), found (of
    those), false_alarms (called used, but are not), denied (called not, but are used), unknown
    (no rule decides), precision = found / (found + false_alarms), recall = found / used (an
    unknown kernel counts as missed), decided (share with a verdict). NaN for a division by 0.

    Args:
        kernels: kernel and truth, and part and generation if you have them; by default the
            labelled ones.
    """
    table = labelled() if kernels is None else kernels
    table = table.assign(verdict=[classify(name).verdict for name in table["kernel"]])
    for column, default in {"part": "yours", "generation": "all"}.items():
        table[column] = table.get(column, default)
    rows = []
    for part, group in table.groupby("part", sort=False):
        rows.append({"part": part, "generation": "all", **_counts(group)})
        for generation, some in group.groupby("generation", sort=False):
            if generation != "all":
                rows.append({"part": part, "generation": generation, **_counts(some)})
    return pd.DataFrame(rows)


def _counts(table: pd.DataFrame) -> dict[str, float]:
    used, verdict = table["truth"] == USED, table["verdict"]
    true_positives, alarms = (used & (verdict == USED)).sum(), (~used & (verdict == USED)).sum()
    unknown = (verdict == UNKNOWN).sum()
    return {
        "kernels": len(table),
        "used": used.sum(),
        "found": true_positives,
        "false_alarms": alarms,
        "denied": (used & (verdict == NOT)).sum(),
        "unknown": unknown,
        "precision": _share(true_positives, true_positives + alarms),
        "recall": _share(true_positives, used.sum()),
        "decided": _share(len(table) - unknown, len(table)),
    }


def _share(part: int, total: int) -> float:
    return part / total if total else np.nan
