"""A node of eight as it would be recorded: copies of other machines' runs, and marked as such."""

import json
from pathlib import Path

import pytest
from recorded_helpers import copy_row

from course.runs import recordings, rows
from course.runs.run import RECORDED, Run

NODE, COPIED = "nvidia-h200-x8", "NVIDIA H200 (copied for a test, measured by nobody)"


def copied_node(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Recordings as they are, and beside them a node: 8 GPUs made of 4, or of one, in a folder."""
    folder.mkdir()
    for path in RECORDED.iterdir():
        (folder / path.name).symlink_to(path)
    patch.setattr(recordings, "RECORDED", folder)
    (folder / NODE).mkdir()
    index = recordings.load("nvidia-h200-x4") | {"machine": COPIED, "gpus": 8}
    (folder / NODE / "index.json").write_text(json.dumps(index | {"command": "a test"}))
    for run in recordings.recorded_runs("nvidia-h200-x4", "scaling"):
        if run.config.rung in ("channels_last", "compile") and run.record.gpus in (1, 4):
            _copy(run, folder / NODE, run.config.rung, 8 if run.record.gpus == 4 else 1)
        if run.config.rung == "compile" and run.record.gpus in (1, 4):
            fed = {"data": "default", "format": "gpu_decode", "uint8": True}
            gpus = 8 if run.record.gpus == 4 else 1
            _copy(run, folder / NODE, "compile-gpu_decode", gpus, "feeding", fed)
    for run in recordings.recorded_runs("nvidia-h100", "throughput"):
        if run.config.rung == "algebra" and run.config.precision == "bf16":
            for gpus in (1, 8):
                _copy(run, folder / NODE, "algebra", gpus)


def _copy(
    run: Run,
    folder: Path,
    rung: str,
    gpus: int,
    purpose: str = "scaling",
    own: dict | None = None,
) -> None:
    each = run.config.batch_size // run.record.gpus
    name = f"{rung}-{gpus}-{each}"
    speed = run.record.images_per_s * gpus / run.record.gpus
    machine = {"gpus": gpus, "machine": COPIED, "images_per_s": speed}
    copy_row(
        run,
        folder,
        name,
        config={"rung": rung, "batch_size": each * gpus} | (own or {}),
        record={"rung": rung} | machine,
        request={"rung": rung, "gpus": gpus, "purpose": purpose},
    )
    if run.record.gpus > 1:
        row = rows.read(folder / rows.RUNS, name)
        ranks = [run.ranks[rank % run.record.gpus] | {"rank": rank} for rank in range(gpus)]
        rows.write(folder / rows.RUNS, row | {"ranks": ranks})
