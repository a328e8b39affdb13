"""A node of eight as it would be recorded: copies of other machines' runs, and marked as such."""

import json
import shutil
from pathlib import Path

import pytest

from course.runs import recordings
from course.runs import run as runs
from course.runs.run import RECORDED, Run

NODE, COPIED = "nvidia-h200-x8", "NVIDIA H200 (copied for a test, measured by nobody)"


def copied_node(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Recordings as they are, and beside them a node: 8 GPUs made of 4, or of one, in a folder."""
    folder.mkdir()
    for path in RECORDED.iterdir():
        (folder / path.name).symlink_to(path)
    patch.setattr(recordings, "RECORDED", folder)
    patch.setattr(runs, "RECORDED", folder)
    (folder / NODE).mkdir()
    index = recordings.load("nvidia-h200-x4") | {"machine": COPIED, "gpus": 8}
    del index["records"]
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
    place = folder / f"{rung}-{gpus}-{each}"
    shutil.copytree(run.folder, place)
    config = {"rung": rung, "batch_size": each * gpus} | (own or {})
    speed = run.record.images_per_s * gpus / run.record.gpus
    machine = {"gpus": gpus, "machine": COPIED, "images_per_s": speed}
    _change(place / "config.json", config)
    _change(place / "record.json", {"rung": rung} | machine, config)
    _change(place / "launch.json", {"rung": rung, "gpus": gpus, "purpose": purpose})
    for rank in range(run.record.gpus, gpus if run.record.gpus > 1 else 0):
        shutil.copy(place / f"rank-{rank % run.record.gpus}.json", place / f"rank-{rank}.json")
        _change(place / f"rank-{rank}.json", {"rank": rank})


def _change(path: Path, values: dict, config: dict | None = None) -> None:
    saved = json.loads(path.read_text()) | values
    if config:
        saved["config"] |= config
    path.write_text(json.dumps(saved))
