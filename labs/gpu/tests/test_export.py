"""`course export`: each tool stores and shows the runs, and sends nothing."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_helpers import own_copy
from typer.testing import CliRunner

from course import __main__
from course.runs.recordings import recorded_runs
from course.runs.run import Run
from labs.gpu import exports
from labs.gpu.exports import export
from labs.gpu.trackers import content

MACHINE = "nvidia-h100"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """A run with epochs, one that was stopped early, one with the time of each step."""
    trials = recorded_runs(MACHINE, "search")
    pruned = next(run for run in trials if run.status == "cancelled")
    return [trials[0], pruned, recorded_runs(MACHINE, "throughput")[0]]


def export_twice(runs: list[Run], to: str, folder: Path) -> None:
    """Export some runs again, which replaces them."""
    export(runs[:2], to, folder)
    export(runs, to, folder)


def test_the_exported_content_is_the_records(runs: list[Run]) -> None:
    contents = [*map(content, runs)]
    for run, exported in zip(runs, contents):
        assert exported.config.items() >= run.record.config.items()
        site = f"recorded-{MACHINE}"
        assert exported.tags[1:] == [run.purpose, run.status, site, run.config.data]
        losses = [row.values["step/loss"] for row in exported.rows]
        assert losses == run.steps["loss"].tolist()
    epochs = [row for row in contents[0].rows if "epoch/val_top1" in row.values]
    results = [epoch["val_top1"] for epoch in runs[0].record.epochs]
    assert [row.values["epoch/val_top1"] for row in epochs] == results


@pytest.mark.slow
def test_tensorboard_reads_them(runs: list[Run], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / runs[0].name).mkdir()
    (tmp_path / runs[0].name / "notes.txt").write_text("a learner's")
    export_twice(runs, "tensorboard", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(run.name for run in runs)
    assert (tmp_path / runs[0].name / "notes.txt").read_text() == "a learner's"
    events = EventAccumulator(str(tmp_path / runs[0].name)).Reload()
    losses = [event.value for event in events.Scalars("step/loss")]
    assert losses == pytest.approx(runs[0].steps["loss"].tolist(), rel=1e-6)
    (top1,) = events.Scalars("summary/val_top1")
    assert top1.value == pytest.approx(runs[0].record.val_top1, rel=1e-6)


@pytest.mark.slow
def test_trackio_reads_them(runs: list[Run], tmp_path: Path) -> None:
    export(runs, "trackio", tmp_path)

    def trackio(*words: str) -> dict[str, Any]:
        command = [str(BIN / "trackio"), *words, "--project", "course", "--json"]
        env = os.environ | {"TRACKIO_DIR": str(tmp_path)}
        return json.loads(subprocess.check_output(command, env=env, text=True))

    name = ("--run", runs[0].name)
    losses = trackio("get", "metric", *name, "--metric", "step/loss")["values"]
    assert [row["value"] for row in losses] == runs[0].steps["loss"].tolist()
    config = trackio("get", "run", *name)["config"]
    assert config["summary_val_top1"] == runs[0].record.val_top1


@pytest.mark.slow
def test_wandbs_offline_runs_contain_them(runs: list[Run], tmp_path: Path) -> None:
    """Without its server it has no page, so the test reads the files that `wandb sync` sends."""
    export_twice(runs, "wandb", tmp_path)
    files = [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert sorted(path.stem for path in files) == sorted(f"run-{run.name}" for run in runs)
    (path,) = (path for path in files if runs[0].name in path.stem)
    text = path.read_bytes().decode(errors="replace")
    assert all(tag in text for tag in content(runs[0]).tags)
    assert str(runs[0].record.val_top1) in text
    losses = runs[0].steps["loss"]
    assert all(str(loss) in text for loss in (losses.iloc[0], losses.iloc[-1]))


def test_a_tool_cannot_use_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRACKIO_SPACE_ID", "WANDB_API_KEY", "WANDB_MODE", "HF_TOKEN"):
        monkeypatch.setenv(name, "online")
    env = exports._offline(tmp_path)
    assert not {"TRACKIO_SPACE_ID", "WANDB_API_KEY", "HF_TOKEN"} & env.keys()
    assert env["WANDB_MODE"] == "offline" and env["HF_HUB_OFFLINE"] == "1"
    assert env["TRACKIO_DIR"] == str(tmp_path)


@pytest.mark.parametrize("inside", ["", "{name}/logs", "link"])
def test_a_run_is_never_overwritten(runs: list[Run], tmp_path: Path, inside: str) -> None:
    copy = own_copy(runs[0], tmp_path / "runs" / runs[0].name)
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs")
    before = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"contains {copy.name}: choose a different folder"):
        export(copy, "wandb", tmp_path / "runs" / inside.format(name=copy.name))
    assert before == {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}


def test_the_command_chooses_runs(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run], tmp_path: Path
) -> None:
    requests = []

    def collect(chosen: list[Run], to: str, folder: str) -> exports.Exported:
        requests.append([run.name for run in chosen])
        return exports.Exported(to, tmp_path, tuple(chosen))

    monkeypatch.setattr(exports, "export", collect)
    for words in (runs[0].name, "--search seeds", ""):
        command = shlex.split(f"export --to wandb --recorded {MACHINE} {words}")
        result = CliRunner().invoke(__main__.app, command)
        assert (result.exit_code, "wandb sync" in result.stdout) == (0, True), result.output
    assert requests[0] == [runs[0].name]
    assert len(requests[1]) == 16 and all(name.startswith("seeds-") for name in requests[1])
    assert len(requests[2]) == len(recorded_runs(MACHINE))
