"""Recording a machine: real runs, packed small and without this machine's paths."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from cases import for_all
from job_helpers import SCRIPTS, narrow_solution, prepared
from recorded_helpers import copy_row, own_copy

from course.analysis import communication as report
from course.analysis.traces import tables
from course.checks.exercises import script_variant
from course.checks.lab import Planned
from course.config import Config, rung
from course.data import default_set
from course.jobs import launch, plan
from course.runs import recordings, rows
from course.runs import run as runs
from course.runs.run import Run
from labs import day4_4_search as search
from labs.day2_3_scaling import configs as scaling
from labs.day2_3_scaling import efficiency
from labs.day3_4_compile import compile_checks as compiling
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
SEVERAL = {"scaling", "communication", "parallel", "feeding"}  # of several GPUs alone
EITHER = {"sharding"}  # and of those, and of one to compare with on a machine of one
DRAWN = {"variant", "search"}  # these are launched by a notebook alone, or drawn
PLAIN = rung("device", **TINY)
TRACED = rung(
    "device", **TINY | {"rung": "trace-device", "steps": 6, "warmup_steps": 5, "profile_steps": 1}
)


def test_the_plan_holds_no_run_twice_and_all_that_the_notebooks_ask_for() -> None:
    plan = [planned.config for planned in record.plan() if planned.purpose != "practice"]
    assert {planned.gpus for planned in record.plan()} == {1}
    once = [config for config in plan if not config.rung.endswith(compiling.AGAIN)]
    assert len(plan) - len(once) == 1  # to see the compiler's cache
    assert len({json.dumps(vars(config) | {"rung": ""}) for config in once}) == len(once) > 50
    for name in ("baseline", "device", "amp", "channels_last"):
        assert rung(name) in plan


def test_what_is_compared_by_hand_is_recorded_anew_beside_it() -> None:
    """A ratio over two sessions, on two hosts, would say little."""
    labels = [each.config.rung for each in record.plan() if each.purpose == "practice"]
    again = {label for label in labels if label.endswith("-again")}
    assert len({*labels}) == len(labels)
    assert again == {"fp16-again", "repeatable-fp16-again"}


def test_a_part_of_the_plan_or_the_known_parts() -> None:
    assert {planned.config.rung for planned in record.plan("trace-*")} > {
        "trace-device",
        "trace-amp",
    }
    with pytest.raises(ValueError, match="no rung fits 'moon': there are .*channels_last"):
        record.plan("moon")


def test_the_processors_rungs_are_chosen_by_their_label() -> None:
    on_cpu = [planned.config for planned in record.plan("*-cpu")]
    assert [config.rung for config in on_cpu] == ["amp", "channels_last", "fused", "compile"]
    first = record.plan("baseline")[0].config
    for config in on_cpu:
        alike = {"precision", "channels_last", "fused", "compile", "rung"}
        assert {key: value for key, value in vars(config).items() if key not in alike} == {
            key: value for key, value in vars(first).items() if key not in alike
        }
    assert "cpu" not in {planned.config.device for planned in record.plan("amp")}


@pytest.mark.parametrize("gpus", [1, 4])
def test_what_matters_most_is_recorded_first(gpus: int) -> None:
    purposes = [planned.purpose for planned in record.plan(gpus=gpus)]
    assert purposes == sorted(purposes, key=[*recordings.PURPOSES].index)
    planned = {*recordings.PURPOSES} - DRAWN
    assert set(purposes) == (SEVERAL | EITHER if gpus > 1 else planned - SEVERAL)


@for_all("machine", recordings.machines())
def test_what_is_shipped_was_recorded_for_the_purpose_that_the_plan_has(machine: str) -> None:
    gpus = recordings.load(machine).get("gpus", 1)
    planned = {(each.config.rung, each.gpus, each.purpose) for each in record.plan(gpus=gpus)}
    known = recordings.recorded_runs(machine)
    runs = [run for run in known if run.purpose not in DRAWN]
    searches = {run.launched["trial"]["study"] for run in known if run.purpose == "search"}
    assert searches <= set(tuned.SEARCHES)
    assert {(run.config.rung, run.launched["gpus"], run.purpose) for run in runs} <= planned


@for_all("gpus, counts", [(2, {1, 2}), (3, {1, 2, 3}), (8, {1, 2, 4, 8})])
def test_each_run_on_several_gpus_has_one_of_its_images_on_one(gpus: int, counts: set) -> None:
    plan = record.plan(gpus=gpus)
    assert len({json.dumps(vars(each.config)) + str(each.gpus) for each in plan}) == len(plan)
    assert {each.gpus for each in plan} == counts
    alone = [vars(each.config) for each in plan if each.gpus == 1]
    files = sum(split == "train" for split, *_ in default_set.Recipe().jobs())
    for config, count, purpose in plan:
        if purpose in EITHER or purpose == "parallel":  # of which one GPU has nothing to share out
            continue
        if config.rung == "device":  # lab 2's, of one batch on one GPU and on two
            continue
        if not config.profile_steps:
            each = config.batch_size // count
            assert vars(config) | {"batch_size": each, "bucket_mb": 25.0} in alone
        if config.format == "files" and config.data == "default":
            taken = min(config.steps, files // config.batch_size)
            assert taken == files // config.batch_size  # and no batch is loaded in vain
            assert taken * config.epochs - config.warmup_steps >= 8


def test_a_whole_node_is_recorded_in_one_call_of_less_than_ten_minutes() -> None:
    """What tells most comes first, should the call be cut off."""
    node = record.plan(gpus=8)
    assert len(node) == 3 * 4 * 2 + 3
    begin = [(each.config.rung, each.gpus) for each in node[:6]]
    assert begin == [(name, gpus) for name in scaling.FASTEST for gpus in (8, 1)]
    assert {each.config.batch_size // each.gpus for each in node} == {scaling.EACH}
    assert [each.config for each in node if each.config.profile_steps] == [
        config for config, _ in scaling.traced(8)
    ]
    assert record.plan("algebra*", gpus=2) and record.plan("*-gpu_decode", gpus=4)  # to try it


@pytest.mark.slow
def test_what_ended_is_kept_where_recording_is_cut_off(
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
def test_a_nodes_plan_runs_on_two_processes(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of its runs but the compiled ones, which take a processor minutes. Of networks that
    are narrow: those of 25 million weights take most of the time to be made, and sent."""
    bottlenecks = "narrow.models.create = narrow.bottlenecks\n"

    def launch_narrow(script: str, *rest: Config, **options: object) -> Run:
        narrow = narrow_solution(tmp_path, bottlenecks, name=Path(script).name)
        return launch.launch(narrow, *rest, **options)

    monkeypatch.setattr(record, "launch", launch_narrow)
    small = {"image_px": 32, "steps": 2, "warmup_steps": 1, "workers": 0}
    traced = {"steps": 5, "warmup_steps": 4, "model": "resnet18"}  # of which there is no algebra
    kinds = ("algebra", "channels_last-traced", "algebra-gpu_decode")
    planned = [
        each._replace(config=replace(each.config, **small | own | {"batch_size": 2 * each.gpus}))
        for each in record.plan(gpus=2)
        if each.config.rung in kinds and (each.gpus == 2 or each.config.rung == "algebra")
        for own in [traced if each.config.profile_steps else {"persistent_workers": False}]
    ]
    assert {each.config.rung for each in planned} == {*kinds}
    folder = record.record("two", planned, tmp_path)
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    found = recordings.recorded_runs("two")
    assert len(found) == len(planned) == 4 and {run.status for run in found} == {"ok"}
    synthetic = [run for run in found if run.config.rung == "algebra"]
    assert efficiency.scaling(synthetic)["efficiency"].notna().all()
    (traced,) = (run for run in found if run.record.trace)
    assert set(report.messages([traced])["ranks"]) == {2}
    assert not any(str(runs_root) in path.read_text() for path in folder.glob("*.json*[!z]"))


@pytest.mark.slow
def test_recorded_packed_and_answered_from(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    large = {"rung": "edge", "memory_gib": 1.2, "image_px": 64, "batch_size": 1024}
    too_much = Config(**vars(PLAIN) | large)
    planned = [
        Planned(PLAIN, 1, "throughput"),
        Planned(TRACED, 1, "trace"),
        Planned(too_much, 1, "batch sizes"),
    ]
    other = recordings.recorded_runs("nvidia-h100", "throughput")[0]
    (shipped / "here").mkdir(parents=True)
    copy_row(other, shipped / "here", other.name)
    before = (shipped / "here" / rows.RUNS).read_text()
    folder = record.record("here", planned, shipped)
    once = (folder / rows.RUNS).read_text()
    assert once.startswith(before)
    record.record("here", planned, shipped)  # finds the runs, and packs the same again
    assert (folder / rows.RUNS).read_text() == once
    monkeypatch.setattr(recordings, "RECORDED", shipped)

    known = {run.name: run for run in recordings.recorded_runs("here")}
    untouched = known.pop(other.name)
    assert untouched.record == other.record and untouched.steps.equals(other.steps)
    found = {run.config.rung: run for run in known.values()}
    assert {name: run.status for name, run in found.items()} == {
        "device": "ok",
        "trace-device": "ok",
        "edge": "oom",
    }
    for path in (folder / rows.RUNS, folder / "index.json"):
        assert str(runs_root) not in path.read_text()
    assert [run.config.rung for run in recordings.recorded_runs("here", "batch sizes")] == ["edge"]
    index = json.loads((folder / "index.json").read_text())
    assert index["command"] == "course record here" and index["versions"]["torch"]

    answered = launch.launch("exercises/train.py", PLAIN, site="recorded-here")
    assert answered.folder == found["device"].folder and len(answered.steps) == 4
    assert "(recorded 20" in answered.record.machine and answered.record.images_per_s > 0
    assert len(tables.read(recordings.trace_path("here", "device")).operators) > 100
    assert answered.script == runs.PROJECT / "solutions" / "train.py"


CRITERION = "criterion = nn.CrossEntropyLoss()"


@pytest.mark.slow
def test_variants_are_packed_and_answer_for_their_own_lines_alone(
    runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, lines = tmp_path / "shipped", {CRITERION: "print('noted')"}
    script = script_variant("noted", lines)
    run = launch.wait(launch.launch(script, PLAIN))
    _, repeat = plan.beside(plan.plan("solutions/train.py", PLAIN), run)
    assert repeat.name == run.name and repeat.request["added"] == lines
    open_ = prepared(runs_root / "open", "", PLAIN)
    asked = open_.launched | {"added": {}, "launched_at": ""}
    (open_.folder / "launch.json").write_text(json.dumps(asked))
    with pytest.raises(ValueError, match="open.*measured nothing"):  # and the other was packed
        record.pack_variants("here", shipped)
    index = json.loads((shipped / "here" / "index.json").read_text())
    assert index["command"] == "course record here --variants"
    monkeypatch.setattr(recordings, "RECORDED", shipped)

    def answered(path: str | Path) -> runs.Run:
        return launch.launch(path, PLAIN, site="recorded-here")

    assert answered(script).recorded_on == "here"
    with pytest.raises(ValueError, match="this run was not recorded on here"):
        answered("solutions/train.py")
    with pytest.raises(ValueError, match="no script with these added lines"):
        answered(script_variant("other", {CRITERION: "print('another')"}))
    script.write_text(script.read_text() + "# one more\n")
    with pytest.raises(ValueError, match="edited since"):
        answered(script)


@pytest.mark.slow
def test_searches_are_made_and_packed_with_what_they_drew(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {"sampler": "grid", "space": {"lr": [0.1, 1.0]}, "script": SCRIPTS / "trial_light.py"}
    monkeypatch.setattr(tuned, "SEARCHES", {"tiny": two, "other": two})
    shipped = record.record_searches("here", tmp_path, "t*")
    monkeypatch.setattr(recordings, "RECORDED", tmp_path)
    packed = recordings.recorded_runs("here")
    assert [run.launched["trial"]["params"] for run in packed] == [{"lr": 0.1}, {"lr": 1.0}]
    assert {run.purpose for run in packed} == {"search"}
    assert search.trials(packed)["state"].tolist() == ["complete", "complete"]
    assert search.tested(packed)["search"].tolist() == ["tiny", "tiny"]
    assert str(runs_root) not in (shipped / rows.RUNS).read_text()
    with pytest.raises(ValueError, match="no search fits 'moon': there are tiny, other"):
        record.record_searches("here", tmp_path, "moon")


@pytest.mark.slow
def test_what_cannot_be_packed_leaves_no_half(
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


def test_two_that_record_at_once_lose_nothing(tmp_path: Path) -> None:
    known = recordings.recorded_runs("nvidia-h100", "throughput")[:6]
    own = [own_copy(run, tmp_path / "runs" / run.name) for run in known]
    with ThreadPoolExecutor() as pool:
        pack = partial(record.pack, target=tmp_path / "here", purpose="throughput")
        packed = [*pool.map(pack, own)]
    assert {*rows.names(tmp_path / "here" / rows.RUNS)} == {run.name for run in known}
    for run, copy in zip(known, packed):
        assert copy.steps.equals(run.steps) and copy.config == run.config
        assert copy.record.step_s == run.record.step_s and copy.recorded_on == "here"


def test_steps_are_stored_without_what_is_noise() -> None:
    """Times to a tenth of a microsecond, losses to a millionth."""
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
