"""What docs show of predicted memory: the recorded runs' peaks, as measured and as predicted."""

from __future__ import annotations

from typing import Any

from course.runs import recordings
from course.topics.memory.peaks import median_error, of_recorded, told_rightly
from tools.pages.markdown import markdown

HEAD = ("setting", "batch", "measured GiB", "predicted GiB", "difference", "error", "reserved GiB")


def peaks(machine: str) -> str:
    """Measured and predicted peaks in Markdown, with the median error, and what made them."""
    table = of_recorded(machine)
    ok, oom = table[table["status"] == "ok"], table[table["status"] == "oom"]
    worst = table.loc[table["error"].abs().idxmax()]
    said = (
        f"Median error of the {len(ok)} runs that fitted: {median_error(table):.1%}; the largest, "
        f"{worst.setting} at batch {worst.batch_size}: {worst.error:+.1%}. Of the {len(oom)} that "
        f"did not fit, {told_rightly(oom).sum()} were told not to."
    )
    saved = recordings.load(machine)
    source = (
        f"Measured: {saved['machine']}; {recordings.origin(saved)}; ResNet-50, "
        f"{', '.join(dict.fromkeys(table['inputs']))}. Predicted: "
        f"PyTorch {table['predictor'].iloc[0]}, without a GPU."
    )
    return markdown(HEAD, map(_cells, table.itertuples()), said, source=source)


def _cells(row: Any) -> list[str]:
    """A line of the table; the row is a named tuple."""
    setting = [row.setting, str(row.batch_size)]
    if row.status == "oom":
        over = row.predicted_gib - row.limit_gib
        told = f"{over:.1f} more than there is" if over > 0 else "told to fit"
        return [*setting, f"out of {row.limit_gib:.1f}", f"{row.predicted_gib:.2f}", told, "–", "–"]
    return [
        *setting,
        f"{row.measured_gib:.2f}",
        f"{row.predicted_gib:.2f}",
        f"{row.predicted_gib - row.measured_gib:+.2f}",
        f"{row.error:+.1%}",
        f"{row.reserved_gib:.2f}",
    ]
