"""Record a machine: real runs, packed without this machine's paths."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import prepared
from recorded_helpers import copy_row

from course.analysis import read_trace
from course.checks.lab import Planned
from course.checks.script_variants import script_variant
from course.config import change, rung
from course.jobs import launch, plan
from course.runs import recordings, rows
from course.runs import run as runs
from course.runs.run import Run
from labs.compile.lab import REPEATED
from tools import record

TINY = {
    "model": "resnet18",
    "data": "synthetic",
    "image_px": 32,
    "batch_size": 2,
    "epochs": 1,
    "steps": 4,
    "warmup_steps": 1,
    "val_steps": 0,
}
PLAIN = rung("device", **TINY)
TRACED = rung(
    "device", **TINY | {"rung": "trace-device", "steps": 6, "warmup_steps": 5, "profile_steps": 1}
)


def test_plan_of_one_gpu_has_every_rung_once() -> None:
    plan = record.plan()
    configs = [run.config for run in plan if run.purpose != "practice"]
    once = [config for config in configs if not config.rung.endswith(REPEATED)]
    assert {run.gpus for run in plan} == {1}
    assert len(configs) - len(once) == 1  # it shows the compiler's cache
    assert len({json.dumps(vars(config) | {"rung": ""}) for config in once}) == len(once) > 50
    for name in ("baseline", "device", "amp", "channels_last"):
        assert rung(name) in configs
    traces = {run.config.rung for run in record.plan("trace-*")}
    assert traces > {"trace-device", "trace-amp"}
    on_cpu = [run.config.rung for run in record.plan("*-cpu")]
    assert on_cpu == ["amp", "channels_last", "fused", "compile"]
    assert "cpu" not in {run.config.device for run in record.plan("amp")}
    with pytest.raises(ValueError, match="no rung fits 'moon': there are .*channels_last"):
        record.plan("moon")


@pytest.mark.slow
def test_an_interrupted_recording_keeps_finished_runs(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, wait = [], launch.LaunchedRun.wait

    def interrupted(run: Run, **options: object) -> Run:
        waited.append(run)
        if len(waited) == 2:
            raise KeyboardInterrupt
        return wait(run, **options)

    monkeypatch.setattr(launch.LaunchedRun, "wait", interrupted)
    planned = [Planned(PLAIN, 1, "scaling"), Planned(replace(PLAIN, seed=1), 1, "scaling")]
    with pytest.raises(KeyboardInterrupt):
        record.record("here", planned, tmp_path)
    waited[1].wait()
    assert rows.names(tmp_path / "here" / rows.RUNS) == [waited[0].name]


@pytest.mark.slow
def test_runs_are_recorded_and_answer_launches(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    large = {"rung": "edge", "memory_gib": 1.2, "image_px": 64, "batch_size": 1024}
    planned = [
        Planned(PLAIN, 1, "throughput"),
        Planned(TRACED, 1, "trace"),
        Planned(change(PLAIN, large), 1, "batch sizes"),
        Planned(replace(PLAIN, rung="two", batch_size=8), 2, "scaling"),
    ]
    other = recordings.recorded_runs("nvidia-h100", "throughput")[0]
    (shipped / "here").mkdir(parents=True)
    copy_row(other, shipped / "here", other.name)
    before = (shipped / "here" / rows.RUNS).read_text()
    folder = record.record("here", planned, shipped)
    after = (folder / rows.RUNS).read_text()
    assert after.startswith(before)
    record.record("here", planned, shipped)  # finds the runs, and packs the same again
    assert (folder / rows.RUNS).read_text() == after
    monkeypatch.setattr(recordings, "RECORDED", shipped)

    recorded = {run.name: run for run in recordings.recorded_runs("here")}
    unchanged = recorded.pop(other.name)
    assert unchanged.record == other.record and unchanged.steps.equals(other.steps)
    by_rung = {run.config.rung: run for run in recorded.values()}
    statuses = {name: run.status for name, run in by_rung.items()}
    ok = dict.fromkeys(("device", "trace-device", "two"), "ok")
    assert statuses == ok | {"edge": "oom"} and len(by_rung["two"].ranks) == 2
    for path in (folder / rows.RUNS, folder / "index.json"):
        assert str(runs_root) not in path.read_text()
    assert [run.config.rung for run in recordings.recorded_runs("here", "batch sizes")] == ["edge"]
    index = json.loads((folder / "index.json").read_text())
    assert index["command"] == "course record here" and index["versions"]["torch"]

    answer = launch.launch("exercises/train.py", PLAIN, site="recorded-here")
    assert answer.folder == by_rung["device"].folder and len(answer.steps) == 4
    assert "(recorded 20" in answer.record.machine and answer.record.images_per_s > 0
    assert len(read_trace(recordings.trace_path("here", "device")).operators) > 100
    assert answer.script == runs.PROJECT / "solutions" / "train.py"


CRITERION = "criterion = nn.CrossEntropyLoss()"


@pytest.mark.slow
def test_variants_are_packed_and_only_answer_for_the_same_lines(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, lines = tmp_path / "shipped", {CRITERION: "print('noted')"}
    script = script_variant("noted", lines)
    run = launch.launch(script, PLAIN).wait()
    _, repeat = plan.beside(plan.plan_run("solutions/train.py", PLAIN), run)
    assert repeat.name == run.name and repeat.request["added"] == lines
    unfinished = prepared(runs_root / "open", "", PLAIN)
    request = unfinished.launched | {"added": {}, "launched_at": ""}
    (unfinished.folder / "launch.json").write_text(json.dumps(request))
    with pytest.raises(ValueError, match="open.*measured nothing"):  # the other was packed
        record.pack_variants("here", shipped)
    index = json.loads((shipped / "here" / "index.json").read_text())
    assert index["command"] == "course record here --variants"
    monkeypatch.setattr(recordings, "RECORDED", shipped)

    def answer(path: str | Path) -> runs.Run:
        return launch.launch(path, PLAIN, site="recorded-here")

    assert answer(script).recorded_on == "here"
    with pytest.raises(ValueError, match="this run was not recorded on here"):
        answer("solutions/train.py")
    with pytest.raises(ValueError, match="no script with these added lines"):
        answer(script_variant("other", {CRITERION: "print('another')"}))
    script.write_text(script.read_text() + "# one more\n")
    with pytest.raises(ValueError, match="edited since"):
        answer(script)
