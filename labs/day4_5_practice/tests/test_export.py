"""`course export`: each tool stores and shows the runs, and sends nothing."""

import json
import math
import shlex
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import ask, free_port, page, serving
from recorded_helpers import own_copy
from typer.testing import CliRunner

from course import __main__
from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT, Run, all_runs
from labs.day4_5_practice import exports, trackers
from labs.day4_5_practice.exports import export
from labs.day4_5_practice.trackers import content

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


def test_the_exported_content_is_the_records(runs: list[Run], tmp_path: Path) -> None:
    contents = [*map(content, runs)]
    for run, exported in zip(runs, contents):
        assert exported.config.items() >= run.record.config.items()
        assert exported.numbers["wall_s"] == run.record.wall_s
        site = f"recorded-{MACHINE}"
        assert exported.tags[1:] == [run.purpose, run.status, site, run.config.data]
        losses = [row.values["step/loss"] for row in exported.rows]
        assert losses == run.steps["loss"].tolist()
    epochs = [row for row in contents[0].rows if "epoch/val_top1" in row.values]
    results = [epoch["val_top1"] for epoch in runs[0].record.epochs]
    assert [row.values["epoch/val_top1"] for row in epochs] == results
    last = runs[0].steps.groupby("epoch")["step"].max()
    assert [row.step for row in epochs] == last.tolist()
    rows, times = contents[2].rows, runs[2].steps["step_s"].tolist()
    assert rows[-1].at_s - rows[0].at_s == pytest.approx(sum(times[1:]), rel=1e-6)
    folder = own_copy(runs[0], tmp_path / "diverged").folder
    steps = [{"step": at, "epoch": 0, "loss": loss} for at, loss in enumerate([1.0, math.inf])]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))
    assert [row.values.get("step/loss") for row in content(Run(folder)).rows] == [1.0, None]


@pytest.mark.slow
def test_tensorboard_shows_them(runs: list[Run], tmp_path: Path) -> None:
    export_twice(runs, "tensorboard", tmp_path / "out")
    port = free_port()
    command = [str(BIN / "tensorboard"), "--logdir", str(tmp_path / "out"), "--port", str(port)]
    with serving([*command, "--load_fast=false"], port) as address:
        text = page(address, tmp_path / "browser")
        scalars = f"{address}/data/plugin/scalars/scalars?run={runs[0].name}&tag="
        losses = [value for _, _, value in ask(f"{scalars}step/loss")]
        ((_, _, top1),) = ask(f"{scalars}summary/val_top1")
        experiment = ask(f"{address}/data/plugin/hparams/experiment", experimentName="")
    assert all(run.name in text for run in runs)
    assert losses == pytest.approx(runs[0].steps["loss"].tolist(), rel=1e-6)
    assert top1 == pytest.approx(runs[0].record.val_top1, rel=1e-6)
    names = {info["name"] for info in experiment["hparamInfos"]}
    assert {"lr", "batch_size", "optimizer"} & names == {"lr", "batch_size"}


@pytest.mark.slow
def test_trackio_shows_them(runs: list[Run], tmp_path: Path) -> None:
    export_twice(runs, "trackio", tmp_path / "out")
    port = free_port()
    variables = {"TRACKIO_DIR": str(tmp_path / "out"), "GRADIO_SERVER_PORT": str(port)}
    with serving([str(BIN / "trackio"), "show"], port, **variables) as address:
        text = page(f"{address}/?project=course", tmp_path / "browser")
        listed = ask(f"{address}/api/get_runs_for_project", project="course")["data"]
        query = {"project": "course", "run": runs[0].name, "max_points": 10_000}
        rows = ask(f"{address}/api/get_logs", **query)["data"]
        configs = ask(f"{address}/api/get_run_configs", project="course")["data"]
    assert all(run.name in text for run in runs)
    assert sorted(row["name"] for row in listed) == sorted(run.name for run in runs)
    assert [row["step/loss"] for row in rows] == runs[0].steps["loss"].tolist()
    (config,) = (configs[row["id"]] for row in listed if row["name"] == runs[0].name)
    assert config["summary_val_top1"] == runs[0].record.val_top1


@pytest.mark.slow
def test_wandbs_offline_runs_contain_them(runs: list[Run], tmp_path: Path) -> None:
    """Without its server it has no page, so the test reads the file that `wandb sync` sends."""
    export_twice(runs, "wandb", tmp_path)
    files = [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert sorted(path.stem for path in files) == sorted(f"run-{run.name}" for run in runs)
    (path,) = (path for path in files if runs[0].name in path.stem)
    stored = read_wandb(path)
    assert stored["tags"] == content(runs[0]).tags
    assert stored["config"]["lr"] == runs[0].config.lr
    assert [row["step/loss"] for row in stored["rows"]] == runs[0].steps["loss"].tolist()
    assert stored["summary"]["val_top1"] == runs[0].record.val_top1


def read_wandb(path: Path) -> dict[str, Any]:
    """Read an offline run with wandb's description of its records."""
    from wandb.proto import wandb_internal_pb2 as proto

    def items(entries: Any) -> dict[str, Any]:
        return {
            entry.key or "/".join(entry.nested_key): json.loads(entry.value_json)
            for entry in entries
        }

    stored: dict[str, Any] = {"rows": [], "summary": {}, "config": {}, "tags": []}
    for text in leveldb_records(path.read_bytes()):
        record = proto.Record.FromString(text)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            stored["tags"] = [*record.run.tags]
            stored["config"] |= items(record.run.config.update)
        elif kind == "history":
            stored["rows"].append(items(record.history.item))
        elif kind == "summary":
            stored["summary"] |= items(record.summary.update)
    return stored


def leveldb_records(data: bytes) -> list[bytes]:
    """Read LevelDB's log format: blocks of 32 KiB, with records in pieces."""
    block, head, records = 32 * 1024, struct.Struct("<IHB"), []
    at, piece = 7, b""  # after the file's header
    while at + head.size <= len(data):
        if block - at % block < head.size:  # the rest of a block is empty
            at += block - at % block
            continue
        _, length, kind = head.unpack_from(data, at)
        piece += data[at + head.size : at + head.size + length]
        at += head.size + length
        if kind in (1, 4):  # complete, or the last piece
            records.append(piece)
            piece = b""
    return records


def test_a_tool_cannot_use_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRACKIO_SPACE_ID", "WANDB_API_KEY", "WANDB_MODE", "HF_TOKEN"):
        monkeypatch.setenv(name, "online")
    env = exports._offline(tmp_path)
    assert not {"TRACKIO_SPACE_ID", "WANDB_API_KEY", "HF_TOKEN"} & env.keys()
    assert env["WANDB_MODE"] == "offline" and env["HF_HUB_OFFLINE"] == "1"
    assert env["TRACKIO_DIR"] == str(tmp_path)


@pytest.mark.parametrize("inside", ["", "{name}", "{name}/logs", "link"])
def test_a_run_is_never_overwritten(runs: list[Run], tmp_path: Path, inside: str) -> None:
    copy = own_copy(runs[0], tmp_path / "runs" / runs[0].name)
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs")
    before = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"contains {copy.name}: choose a different folder"):
        export(copy, "wandb", tmp_path / "runs" / inside.format(name=copy.name))
    assert before == {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}


def test_only_tensorboards_files_are_replaced(runs: list[Run], tmp_path: Path) -> None:
    folder = tmp_path / runs[0].name
    folder.mkdir()
    (folder / "notes.txt").write_text("a learner's")
    for _ in range(2):
        trackers.write_tensorboard(tmp_path, content(runs[0]))
    assert (folder / "notes.txt").read_text() == "a learner's"
    assert len([*folder.glob(trackers.EVENTS)]) == 1


def test_bad_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run], runs_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no tool 'comet'.*choose tensorboard, trackio, wandb"):
        export(runs, "comet")
    with pytest.raises(ValueError, match="no run to export"):
        export([], "wandb")
    folder = runs_root / "waits"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not over yet: waits \[queued\]"):
        export(all_runs(), "wandb")
    (tmp_path / "absent").mkdir()  # such as the folder wandb/ that the tool leaves
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(exports, "TOOLS", ("absent", "missing"))
    for tool in exports.TOOLS:
        with pytest.raises(ValueError, match=f"{tool} is not installed: pip install {tool}"):
            export(runs, tool)


def test_the_command_to_view_them_is_for_the_projects_folder(tmp_path: Path) -> None:
    inside = exports.Exported("tensorboard", PROJECT / "runs/exports/tensorboard", ())
    assert inside.look == "tensorboard --logdir runs/exports/tensorboard"
    outside = exports.Exported("tensorboard", tmp_path / "two words", ())
    assert outside.look == f"tensorboard --logdir '{tmp_path}/two words'"


@pytest.mark.slow
def test_a_tools_error_is_shown(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("a file where a folder should be")
    with pytest.raises(ValueError, match=r"wandb did not take the runs: .*wandb"):
        export(runs[0], "wandb", tmp_path)


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
