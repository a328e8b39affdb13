"""`course export`: each tool takes the runs, shows them in its page, and sends nothing."""

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
from course.runs.trackers import export as handing
from course.runs.trackers import tensorboard
from course.runs.trackers.content import content
from course.runs.trackers.export import ExportError, export

MACHINE = "nvidia-h100"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """One with epochs, one that was ended before its time, one with times for each step."""
    trials = recorded_runs(MACHINE, "search")
    pruned = next(run for run in trials if run.status == "cancelled")
    return [trials[0], pruned, recorded_runs(MACHINE, "throughput")[0]]


def twice(runs: list[Run], to: str, folder: Path) -> None:
    """Runs that are there already are written anew."""
    export(runs[:2], to, folder)
    export(runs, to, folder)


def test_what_a_run_hands_on_is_what_its_record_says(runs: list[Run]) -> None:
    trained, pruned, timed = map(content, runs)
    for run, told in zip(runs, (trained, pruned, timed)):
        assert told.config.items() >= run.record.config.items()
        assert told.numbers["wall_s"] == run.record.wall_s
        assert told.tags[1:] == [run.purpose, run.status, f"recorded-{MACHINE}", run.config.data]
        losses = [row.values["step/loss"] for row in told.rows]
        assert losses == run.steps["loss"].tolist()
    found = [row for row in trained.rows if "epoch/val_top1" in row.values]
    assert [row.values["epoch/val_top1"] for row in found] == [
        epoch["val_top1"] for epoch in runs[0].record.epochs
    ]
    last = runs[0].steps.groupby("epoch")["step"].max()
    assert [row.step for row in found] == last.tolist()
    took_s = timed.rows[-1].at_s - timed.rows[0].at_s
    assert took_s == pytest.approx(sum(timed_steps(runs[2])[1:]), rel=1e-6)


def timed_steps(run: Run) -> list[float]:
    return run.steps["step_s"].tolist()


def test_what_is_no_number_is_no_value(tmp_path: Path, runs: list[Run]) -> None:
    folder = own_copy(runs[0], tmp_path / "diverged").folder
    lines = [{"step": at, "epoch": 0, "loss": each} for at, each in enumerate([1.0, math.inf])]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [row.values.get("step/loss") for row in content(Run(folder)).rows] == [1.0, None]


@pytest.mark.slow
def test_tensorboard_shows_them(runs: list[Run], tmp_path: Path) -> None:
    twice(runs, "tensorboard", tmp_path / "out")
    port = free_port()
    command = [str(BIN / "tensorboard"), "--logdir", str(tmp_path / "out"), "--port", str(port)]
    with serving([*command, "--load_fast=false"], port) as address:
        seen = page(address, tmp_path / "browser")
        scalars = f"{address}/data/plugin/scalars/scalars?run={runs[0].name}&tag="
        losses = [value for _, _, value in ask(f"{scalars}step/loss")]
        ((_, _, found),) = ask(f"{scalars}summary/val_top1")
        trials = ask(f"{address}/data/plugin/hparams/experiment", experimentName="")
    assert all(run.name in seen for run in runs)
    assert losses == pytest.approx(runs[0].steps["loss"].tolist(), rel=1e-6)  # of 32 bits
    assert found == pytest.approx(runs[0].record.val_top1, rel=1e-6)
    names = {each["name"] for each in trials["hparamInfos"]}
    assert {"lr", "batch_size", "optimizer"} & names == {"lr", "batch_size"}  # as by default


@pytest.mark.slow
def test_trackio_shows_them(runs: list[Run], tmp_path: Path) -> None:
    twice(runs, "trackio", tmp_path / "out")
    port = free_port()
    variables = {"TRACKIO_DIR": str(tmp_path / "out"), "GRADIO_SERVER_PORT": str(port)}
    with serving([str(BIN / "trackio"), "show"], port, **variables) as address:
        seen = page(f"{address}/?project=course", tmp_path / "browser")
        listed = ask(f"{address}/api/get_runs_for_project", project="course")["data"]
        asked = {"project": "course", "run": runs[0].name, "max_points": 10_000}
        rows = ask(f"{address}/api/get_logs", **asked)["data"]
        config = ask(f"{address}/api/get_run_configs", project="course")["data"]
    assert all(run.name in seen for run in runs)
    assert sorted(each["name"] for each in listed) == sorted(run.name for run in runs)
    assert [row["step/loss"] for row in rows] == runs[0].steps["loss"].tolist()
    (told,) = (config[each["id"]] for each in listed if each["name"] == runs[0].name)
    assert told["summary_val_top1"] == runs[0].record.val_top1


@pytest.mark.slow
def test_offline_runs_of_wandb_hold_them(runs: list[Run], tmp_path: Path) -> None:
    """It has no page without its server: the file is read that `wandb sync` would send."""
    twice(runs, "wandb", tmp_path)
    files = [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert sorted(path.stem for path in files) == sorted(f"run-{run.name}" for run in runs)
    (path,) = (each for each in files if runs[0].name in each.stem)
    told = read(path)
    assert told["tags"] == content(runs[0]).tags
    assert told["config"]["lr"] == runs[0].config.lr
    assert [row["step/loss"] for row in told["rows"]] == runs[0].steps["loss"].tolist()
    assert told["summary"]["val_top1"] == runs[0].record.val_top1


def read(path: Path) -> dict[str, Any]:
    """An offline run, by wandb's own description of its records."""
    from wandb.proto import wandb_internal_pb2 as proto

    told: dict[str, Any] = {"rows": [], "summary": {}, "config": {}, "tags": []}
    for text in records(path.read_bytes()):
        record = proto.Record.FromString(text)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            told["tags"] = [*record.run.tags]
            told["config"] |= items(record.run.config.update)
        elif kind == "history":
            told["rows"].append(items(record.history.item))
        elif kind == "summary":
            told["summary"] |= items(record.summary.update)
    return told


def items(found: Any) -> dict[str, Any]:
    return {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in found}


def records(data: bytes) -> list[bytes]:
    """What a file in LevelDB's log format holds: blocks of 32 KiB, with records in pieces."""
    block, head, found = 32 * 1024, struct.Struct("<IHB"), []
    at, piece = 7, b""  # behind the file's own head
    while at + head.size <= len(data):
        if block - at % block < head.size:  # too little room: the rest of a block is empty
            at += block - at % block
            continue
        _, length, kind = head.unpack_from(data, at)
        piece += data[at + head.size : at + head.size + length]
        at += head.size + length
        if kind in (1, 4):  # whole, or the last piece
            found.append(piece)
            piece = b""
    return found


def test_no_tool_is_let_into_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRACKIO_SPACE_ID", "WANDB_API_KEY", "WANDB_MODE", "HF_TOKEN"):
        monkeypatch.setenv(name, "online")
    given = handing._offline(tmp_path)
    assert not {"TRACKIO_SPACE_ID", "WANDB_API_KEY", "HF_TOKEN"} & given.keys()
    assert given["WANDB_MODE"] == "offline" and given["HF_HUB_OFFLINE"] == "1"
    assert given["TRACKIO_DIR"] == str(tmp_path)


@pytest.mark.parametrize("to", handing.TOOLS)
@pytest.mark.parametrize("inside", ["", "{name}", "{name}/logs", "link"])
def test_a_run_is_never_written_over(runs: list[Run], tmp_path: Path, to: str, inside: str) -> None:
    """Into the folder of all runs, or into a run's own, nothing is handed on."""
    own = own_copy(runs[0], tmp_path / "runs" / runs[0].name)
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs")
    before = {path: path.read_bytes() for path in own.folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"holds {own.name} itself: choose a folder"):
        export(own, to, tmp_path / "runs" / inside.format(name=own.name))
    assert before == {path: path.read_bytes() for path in own.folder.rglob("*") if path.is_file()}


def test_tensorboards_files_alone_are_replaced(runs: list[Run], tmp_path: Path) -> None:
    own = tmp_path / runs[0].name
    own.mkdir()
    (own / "notes.txt").write_text("a learner's")
    for _ in range(2):
        tensorboard.write(tmp_path, content(runs[0]))
    assert (own / "notes.txt").read_text() == "a learner's"
    assert len([*own.glob(tensorboard.EVENTS)]) == 1


def test_a_tool_that_is_missing_or_unknown_is_told(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no tool 'comet'.*choose tensorboard, trackio, wandb"):
        export(runs, "comet")
    with pytest.raises(ValueError, match="no run to export"):
        export([], "wandb")
    (tmp_path / "absent").mkdir()  # as the folder that wandb leaves where it has been used
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(handing, "TOOLS", ("absent", "missing"))
    for tool in handing.TOOLS:
        with pytest.raises(ValueError, match=f"{tool} is not installed: pip install {tool}"):
            export(runs, tool)


def test_the_line_to_look_at_them_is_for_the_projects_folder(tmp_path: Path) -> None:
    inside = handing.Exported("tensorboard", PROJECT / "runs/exports/tensorboard", ())
    assert inside.look == "tensorboard --logdir runs/exports/tensorboard"
    spaced = handing.Exported("tensorboard", tmp_path / "two words", ())
    assert spaced.look == f"tensorboard --logdir '{tmp_path}/two words'"


def test_runs_that_are_not_over_are_refused(runs_root: Path) -> None:
    folder = runs_root / "waits"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not over yet: waits \[queued\]"):
        export(all_runs(), "wandb")


@pytest.mark.slow
def test_a_tool_that_fails_says_why(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("a file where a folder should be")
    with pytest.raises(ExportError, match=r"wandb did not take the runs: .*wandb"):
        export(runs[0], "wandb", tmp_path)


def test_the_command_chooses_runs(
    monkeypatch: pytest.MonkeyPatch, runs: list[Run], tmp_path: Path
) -> None:
    asked = []

    def take(chosen: list[Run], to: str, folder: str) -> handing.Exported:
        asked.append([run.name for run in chosen])
        return handing.Exported(to, tmp_path, tuple(chosen))

    monkeypatch.setattr(handing, "export", take)
    name = runs[0].name
    for words in (f"--search seeds {name[:10]}", "--search seeds", ""):
        command = shlex.split(f"export --to wandb --recorded {MACHINE} {words}")
        if words.endswith(name[:10]):
            command[-3:] = [name]
        result = CliRunner().invoke(__main__.app, command)
        assert (result.exit_code, "wandb sync" in result.stdout) == (0, True)
    assert asked[0] == [name]
    assert len(asked[1]) == 16 and all(each.startswith("seeds-") for each in asked[1])
    assert len(asked[2]) == len(recorded_runs(MACHINE))
