"""What README and docs show of Day 3's recorded runs: formats that feed one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.runs import recordings
from course.runs.run import Run
from course.text import digits
from course.topics.loading import feeding
from tools.pages.markdown import markdown

HEAD = (
    "format",
    "decoded by",
    "workers",
    "images/s",
    "of synthetic",
    "waits, ms",
    "computes, ms",
    "host, GiB",
    "J/image",
)
DECODED = {
    "files": "workers",
    "shards": "workers",
    "small": "workers",
    "raw": "nobody",
    "gpu_decode": "the GPU",
}
SYNTHETIC = "synthetic"


def formats(machine: str = "nvidia-h200") -> str:
    """What a compiled step trains from each format, beside synthetic images, in Markdown.

    Raises:
        ValueError: no run on synthetic images was recorded for this.
    """
    fed = {run.config.rung: (run, row) for run, row in _fed(machine)}
    if SYNTHETIC not in fed:
        raise ValueError(f"a compiled run on synthetic images beside formats: none on {machine}")
    synthetic, eats = fed[SYNTHETIC]
    order = sorted(fed.values(), key=lambda each: -each[1].images_per_s)
    about = (
        f"Lab 3.1. {synthetic.record.machine}, {synthetic.record.hardware['cores']} cores; "
        f"ResNet-50, compiled, bf16, 224 px, batch {synthetic.config.batch_size}; mean of all "
        f"measured steps. The set's files lie in memory"
    )
    return markdown(HEAD, [_row(*each, eats.images_per_s) for each in order], source=f"{about}.")


def _fed(machine: str) -> Iterator[tuple[Run, Any]]:
    """Compiled runs, each with its row of `trials`; what loads alone is no way to feed a GPU."""
    for run in recordings.recorded_runs(machine, "formats"):
        if run.status == "ok" and run.config.compile:
            yield run, next(feeding.trials([run]).itertuples())


def _row(run: Run, row: Any, eats: float) -> list[str]:
    is_synthetic = run.config.data == SYNTHETIC
    watts = run.record.watts
    return [
        SYNTHETIC if is_synthetic else run.config.format,
        "–" if is_synthetic else DECODED[run.config.format],
        "–" if is_synthetic else str(run.config.workers),
        digits(row.images_per_s),
        f"{row.images_per_s / eats:.1%}",
        f"{row.load_ms:.1f}",
        f"{row.step_ms - row.load_ms:.1f}",
        f"{row.host_gib:.1f}",
        f"{watts / row.images_per_s:.3f}" if watts else "–",
    ]
