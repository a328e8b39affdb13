"""Recording a machine: real runs, packed small and without this machine's paths."""

import json
import shutil
from pathlib import Path

import pytest

from course import jobs, packing, recordings, runs, trace
from course.config import Config, rung

TINY = {"model": "resnet18", "data": "synthetic", "image_px": 32, "batch_size": 2, "epochs": 1,
        "steps": 4, "warmup_steps": 1, "val_steps": 0}  # fmt: skip
PLAIN = rung("device", **TINY)
TRACED = rung("device", **TINY | {"rung": "trace-device", "steps": 6, "warmup_steps": 5,
                                  "profile_steps": 1})  # fmt: skip


def test_the_plan_holds_no_run_twice_and_all_that_the_notebooks_ask_for() -> None:
    plan = packing.plan()
    assert len({json.dumps(vars(config) | {"rung": ""}) for config in plan}) == len(plan)
    for name in ("baseline", "device", "amp", "channels_last"):
        assert rung(name) in plan


def test_a_part_of_the_plan_or_the_known_parts() -> None:
    assert {config.rung for config in packing.plan("trace-*")} > {"trace-device", "trace-amp"}
    with pytest.raises(ValueError, match="no rung fits 'moon': there are .*channels_last"):
        packing.plan("moon")


def test_the_processors_rungs_are_chosen_by_their_label() -> None:
    on_cpu = packing.plan("*-cpu")
    assert [config.rung for config in on_cpu] == ["amp", "channels_last"]
    first = packing.plan("baseline")[0]
    for config in on_cpu:
        alike = {"precision", "channels_last", "rung"}
        assert {key: value for key, value in vars(config).items() if key not in alike} == {
            key: value for key, value in vars(first).items() if key not in alike}  # fmt: skip
    assert "cpu" not in {config.device for config in packing.plan("amp")}


@pytest.mark.slow
def test_recorded_packed_and_answered_from(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    large = {"rung": "edge", "memory_gib": 1.5, "image_px": 64, "batch_size": 512}
    too_much = Config(**vars(PLAIN) | large)
    for _ in range(2):  # a second time finds the runs, and packs the same again
        folder = packing.record("here", [PLAIN, TRACED, too_much], shipped)
    monkeypatch.setattr(runs, "RECORDED", shipped)
    monkeypatch.setattr(recordings, "RECORDED", shipped)

    found = {run.config.rung: run for run in recordings.runs("here")}
    assert {name: run.status for name, run in found.items()} == {
        "device": "ok", "trace-device": "ok", "edge": "oom"}  # fmt: skip
    for path in folder.rglob("*.json*"):
        if path.suffix != ".gz":
            assert str(runs_root) not in path.read_text()
    index = json.loads((folder / "index.json").read_text())
    assert index["command"] == "course record here" and index["versions"]["torch"]

    answered = jobs.launch("exercises/train.py", PLAIN, site="recorded-here")
    assert answered.folder == found["device"].folder and len(answered.steps) == 4
    assert "(recorded 20" in answered.record.machine and answered.record.images_per_s > 0
    assert len(trace.read(recordings.trace_path("here", "device")).operators) > 100
    assert "torch.optim.SGD" in answered.script.read_text()


@pytest.mark.slow
def test_what_cannot_be_packed_leaves_no_half(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = jobs.wait(jobs.launch(packing.SCRIPT, TRACED))
    with monkeypatch.context() as patch:
        patch.setattr(packing, "TRACE_BYTES", 100)
        with pytest.raises(ValueError, match="its trace has [0-9,]+ bytes, more than 100"):
            packing.pack(traced, tmp_path / "small", "here")
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["train.py"]


def test_a_run_of_another_version_keeps_the_script_that_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = next(run for run in recordings.runs("nvidia-h100") if not run.record.trace)
    run = runs.Run(tmp_path / "runs" / known.name)
    shutil.copytree(known.folder, run.folder)
    run.script.write_text("what ran now")
    machine = tmp_path / "recorded" / "here"
    machine.mkdir(parents=True)
    (machine / "train.py").write_text("what ran before")
    monkeypatch.setattr(runs, "RECORDED", machine.parent)
    packed = [packing.pack(run, machine, "here") for _ in range(2)]
    assert packed[0] == packed[1]
    assert runs.Run(packed[0]).script.read_text() == "what ran now"
    assert (machine / "train.py").read_text() == "what ran before"
    assert len([*machine.glob("train*.py")]) == 2
