"""Record a machine: real runs, packed without this machine's paths."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from cases import for_all
from job_helpers import SCRIPTS, prepared
from recorded_helpers import copy_row, own_copy

from course.analysis.traces import tables
from course.checks.exercises import script_variant
from course.checks.lab import Planned
from course.config import Config, rung
from course.jobs import launch, plan
from course.runs import recordings, rows
from course.runs import run as runs
from course.runs.run import Run
from labs import day4_4_search as search
from labs.day3_4_compile.lab import REPEATED
from labs.day4_4_search import configs as tuned
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
FROM_NOTEBOOKS = {"variant", "search"}  # purposes that the plan does not have


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


@for_all("gpus, counts", [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (8, {1, 2, 4, 8})])
def test_plan_has_important_purposes_first_and_a_baseline_on_one_gpu(
    gpus: int, counts: set
) -> None:
    plan = record.plan(gpus=gpus)
    purposes = [run.purpose for run in plan]
    assert purposes == sorted(purposes, key=[*recordings.PURPOSES].index)
    assert {run.gpus for run in plan} == counts
    alone = [vars(run.config) for run in plan if run.gpus == 1]
    scaled = [run for run in plan if gpus > 1 and run.purpose in ("scaling", "communication")]
    for config, count, _ in scaled:
        if config.rung != "device" and not config.profile_steps:  # lab 2.2 compares one batch
            batch_size = config.batch_size // count
            assert vars(config) | {"batch_size": batch_size, "bucket_mb": 25.0} in alone


@for_all("machine", recordings.machines())
def test_recordings_are_in_the_plan(machine: str) -> None:
    gpus = recordings.load(machine).get("gpus", 1)
    planned = {(run.config.rung, run.gpus, run.purpose) for run in record.plan(gpus=gpus)}
    recorded = recordings.recorded_runs(machine)
    searches = {run.launched["trial"]["study"] for run in recorded if run.purpose == "search"}
    assert searches <= set(tuned.SEARCHES)
    chosen = [run for run in recorded if run.purpose not in FROM_NOTEBOOKS]
    assert {(run.config.rung, run.launched["gpus"], run.purpose) for run in chosen} <= planned


@pytest.mark.slow
def test_an_interrupted_recording_keeps_finished_runs(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def wait(run: Run, **options: object) -> Run:
        waited.append(run)
        if len(waited) == 2:
            raise KeyboardInterrupt
        return launch.wait(run, **options)

    monkeypatch.setattr(record, "wait", wait)
    planned = [Planned(PLAIN, 1, "scaling"), Planned(replace(PLAIN, seed=1), 1, "scaling")]
    with pytest.raises(KeyboardInterrupt):
        record.record("here", planned, tmp_path)
    launch.wait(waited[1])
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
        Planned(Config(**vars(PLAIN) | large), 1, "batch sizes"),
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
    assert len(tables.read(recordings.trace_path("here", "device")).operators) > 100
    assert answer.script == runs.PROJECT / "solutions" / "train.py"


CRITERION = "criterion = nn.CrossEntropyLoss()"


@pytest.mark.slow
def test_variants_are_packed_and_only_answer_for_the_same_lines(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, lines = tmp_path / "shipped", {CRITERION: "print('noted')"}
    script = script_variant("noted", lines)
    run = launch.wait(launch.launch(script, PLAIN))
    _, repeat = plan.beside(plan.plan("solutions/train.py", PLAIN), run)
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


@pytest.mark.slow
def test_searches_are_recorded_with_their_trials(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {"sampler": "grid", "space": {"lr": [0.1, 1.0]}, "script": SCRIPTS / "trial_light.py"}
    monkeypatch.setattr(tuned, "SEARCHES", {"tiny": two, "other": two})
    shipped = record.record_searches("here", tmp_path, "t*")
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    packed = recordings.recorded_runs("here")
    assert [run.launched["trial"]["params"] for run in packed] == [{"lr": 0.1}, {"lr": 1.0}]
    assert {run.purpose for run in packed} == {"search"}
    assert search.trials_table(packed)["state"].tolist() == ["complete", "complete"]
    assert search.holdout_table(packed)["search"].tolist() == ["tiny", "tiny"]
    assert str(runs_root) not in (shipped / rows.RUNS).read_text()
    with pytest.raises(ValueError, match="no search fits 'moon': there are tiny, other"):
        record.record_searches("here", tmp_path, "moon")


@pytest.mark.slow
def test_a_run_that_cannot_be_packed_leaves_nothing(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = launch.wait(launch.launch("solutions/train.py", TRACED))
    with monkeypatch.context() as patch:
        patch.setattr(record, "TRACE_BYTES", 100)
        with pytest.raises(ValueError, match="its trace has [0-9,]+ bytes, more than 100"):
            record.pack(traced, tmp_path / "small", "trace")
    assert not list((tmp_path / "small").iterdir())
    packed = record.pack(traced, tmp_path / "again", "trace")
    (packed.folder / "old-trace.json.gz").touch()
    assert record.pack(traced, tmp_path / "again", "trace").folder == packed.folder
    assert [path.name for path in packed.folder.iterdir()] == [traced.record.trace]


def test_two_processes_can_record_at_once(tmp_path: Path) -> None:
    known = recordings.recorded_runs("nvidia-h100", "throughput")[:6]
    copies = [own_copy(run, tmp_path / "runs" / run.name) for run in known]
    with ThreadPoolExecutor() as pool:
        pack = partial(record.pack, target=tmp_path / "here", purpose="throughput")
        packed = [*pool.map(pack, copies)]
    assert {*rows.names(tmp_path / "here" / rows.RUNS)} == {run.name for run in known}
    for run, copy in zip(known, packed):
        assert copy.steps.equals(run.steps) and copy.config == run.config
        assert copy.record.step_s == run.record.step_s and copy.recorded_on == "here"


def test_steps_are_rounded() -> None:
    steps = pd.DataFrame(
        [
            {"step": 3, "load_s": 0.00019843199849128724, "step_s": 1 / 3, "loss": 2.72238159179},
            {"step": 4, "load_s": 0.0, "step_s": 0.5, "loss": None},
        ]
    )
    packed = record._columns(steps, "throughput")
    assert packed["loss"] == [2.722382, None] and packed["load_s"] == [0.0001984, 0.0]
    assert json.loads(json.dumps(packed)) == packed
    assert record._columns(pd.DataFrame(packed), "throughput") == packed
