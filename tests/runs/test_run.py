"""Run folders: records are found, whatever state their files are in, and written once."""

import json
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from cases import for_all
from job_helpers import CONFIG, DEADLINE_S, fill, small_disk, start_python
from typer.testing import CliRunner

from course.__main__ import app
from course.data.default_set import default_root
from course.runs import logs
from course.runs import run as runs
from course.runs.files import write_atomically
from course.runs.record import RECORD_SCHEMA, Record, write_record
from course.runs.run import PROJECT, Run, runs_root
from course.training.recorder import Recorder


def make_run(root: Path, name: str, record: str | None = None, **launched) -> Run:
    """A run's folder as a job leaves it, with the text of its record."""
    folder = root / name
    (folder / "logs").mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG.to_json())
    (folder / "launch.json").write_text(json.dumps({"rung": "baseline", **launched}))
    if record is not None:
        (folder / "record.json").write_text(record)
    return Run(folder)


def text_of(**values) -> str:
    return json.dumps({"status": "ok", **values})


@pytest.mark.slow
def test_find_is_fast_over_a_thousand_runs_and_filters(runs_root):
    for number in range(1000):
        rung = "amp" if number % 4 == 0 else "baseline"
        started_at = f"2026-01-01T00:{(number * 7) % 60:02}:00"
        record = text_of(rung=rung, step_s=number / 1000, started_at=started_at)
        make_run(runs_root, f"{rung}-{number}", record)

    began = time.process_time()  # other processes may have the cores
    table = runs.find_runs(rung="amp")
    took_s = time.process_time() - began

    assert took_s < 1.0
    assert len(table) == 250 and set(table.rung) == {"amp"}
    assert table.started_at.is_monotonic_increasing
    row = table[table.run == "amp-40"].iloc[0]
    assert row.step_s == 0.04
    assert len(runs.find_runs()) == 1000
    assert len(runs.find_runs(rung="amp", step_s=0.04)) == 1
    assert runs.find_runs(status="oom").empty


def test_find_with_an_unknown_field_lists_the_fields(runs_root):
    with pytest.raises(ValueError, match=r"records have no \['speed'\].*images_per_s"):
        runs.find_runs(speed=3)


def test_find_without_a_runs_folder_is_an_empty_table(runs_root):
    assert not runs_root.exists()
    assert runs.find_runs().empty and "step_s" in runs.find_runs().columns


@pytest.mark.parametrize(
    "damaged",
    [
        '{"status": "ok", "step_s": 0.',
        "",
        "\0" * 300,
        '["ok"]',
        '{"step_s": 1}',
        '{"status": "splendid"}',
        '{"status": ["ok"]}',
    ],
)
def test_a_damaged_record_is_lost_and_left_as_it_is(runs_root, damaged):
    make_run(runs_root, "good", text_of(step_s=0.5))
    run = make_run(runs_root, "bad", damaged)

    table = runs.find_runs().set_index("run")

    assert dict(table.status) == {"good": "ok", "bad": "lost"}
    assert str(run.folder / "record.json") in table.error["bad"]
    assert table.rung["bad"] == "baseline"  # known from the launch
    assert (run.folder / "record.json").read_text() == damaged


def test_a_record_of_a_newer_version_is_read_without_its_new_fields(runs_root):
    newer = text_of(schema=RECORD_SCHEMA + 1, step_s=0.25, petaflop_s=3.5)
    record = make_run(runs_root, "newer", newer).record
    assert (record.status, record.step_s, record.schema) == ("ok", 0.25, RECORD_SCHEMA + 1)
    assert list(runs.find_runs().step_s) == [0.25]


def test_a_record_of_an_older_version_lacks_what_it_did_not_measure(runs_root):
    record = make_run(runs_root, "older", text_of(schema=0, step_s=0.25)).record
    assert (record.step_s, record.peak_gib, record.epochs) == (0.25, None, [])


@for_all("values", [{}, {"status": None}, {"status": "running"}])
def test_a_record_needs_a_valid_status(values):
    with pytest.raises(ValueError, match="status, one of ok, oom, failed"):
        Record.from_json(json.dumps(values))


def test_the_first_verdict_stands(tmp_path):
    write_record(tmp_path, Record("cancelled", error="on request"))
    write_record(tmp_path, Record("ok"))
    assert Run(tmp_path).record == Record("cancelled", error="on request")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_of_verdicts_written_at_one_moment_all_see_the_same(tmp_path):
    folders = [tmp_path / str(turn) for turn in range(20)]
    for folder in folders:
        folder.mkdir()
    writers = start_python("write_verdicts.py", *folders, stdout=subprocess.PIPE)
    printed, _ = writers.communicate(timeout=DEADLINE_S)

    lines = printed.splitlines()
    assert len(lines) == 8 * len(folders)
    for folder in folders:
        seen = {line for line in lines if line.startswith(f"{folder.name} ")}
        assert seen == {f"{folder.name} {Run(folder).record.error}"}
        assert [path.name for path in folder.iterdir()] == ["record.json"]


def test_a_relative_folder_is_the_same_in_a_terminal_and_in_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RUNS", "my/runs")
    monkeypatch.setenv("COURSE_DATA", "my/data")
    for place in (PROJECT, PROJECT / "notebooks", tmp_path):
        monkeypatch.chdir(place)
        assert runs_root() == PROJECT / "my" / "runs"
        assert default_root() == PROJECT / "my" / "data"


@pytest.mark.parametrize(
    "empty, command, variables",
    [
        ("COURSE_RUNS", ["runs"], {"COURSE_RUNS": ""}),
        ("COURSE_DATA", ["data"], {"COURSE_DATA": " "}),
        ("--data-root", ["data", "--as", "small", "--data-root", ""], {}),
        ("--data-root", ["data", "--data-root", ""], {}),
    ],
)
def test_an_empty_folder_is_refused_with_what_to_write(empty, command, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{empty} is .*empty: .* Write .*FOLDER"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_full_disk_leaves_the_old_text(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / "launch.json"
        write_atomically(path, "old")
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new" * 100_000)
        assert path.read_text() == "old"
        assert [file.name for file in disk.iterdir()] == ["launch.json"]


def test_a_record_that_cannot_be_written_is_no_silent_matter(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            write_record(disk, Record("ok"))


def test_a_run_of_another_version_is_skipped_with_its_reason(runs_root, capsys):
    configs = {"mine-1": '{"lr": 0.1}', "newer-2": '{"colour": "red"}', "cut-3": "{"}
    for name, config in configs.items():
        folder = runs_root / name
        folder.mkdir(parents=True)
        (folder / "launch.json").write_text("{}")
        (folder / "config.json").write_text(config)
    assert [run.name for run in runs.all_runs()] == ["mine-1"]
    assert list(runs.find_runs()["run"]) == ["mine-1"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2 and warnings[0].startswith("skipped cut-3: Expecting property")
    assert warnings[1].startswith(
        "skipped newer-2: a run has no setting 'colour'. Another version of the course"
    )


def test_steps_leave_out_a_last_line_that_is_cut(runs_root):
    run = make_run(runs_root, "amp-1")
    assert run.steps.empty
    (run.folder / "steps.jsonl").write_text('{"step": 0, "loss": 7.0}\n{"step": 1, "lo')
    pd.testing.assert_frame_equal(run.steps, pd.DataFrame([{"step": 0, "loss": 7.0}]))


def test_steps_survive_a_disk_that_was_full_for_a_while(tmp_path, capsys):
    rows = [{"step": step, "loss": 7.0} for step in range(1000)]
    with small_disk(tmp_path / "disk", "64k") as disk:
        run = make_run(disk, "amp-1")
        filler = fill(disk, but_bytes=4096)
        Recorder(run).write_steps(rows)  # the last that fits is cut somewhere
        assert "steps.jsonl misses" in capsys.readouterr().err
        filler.unlink()
        for step in (1000, 1001):
            Recorder(run).write_steps([{"step": step, "loss": 7.0}])
        assert 1001 in set(run.steps.step)


@pytest.mark.parametrize("name", ["amp-12345678", "amp", "p-123"])
def test_get_takes_a_part_of_a_name_that_only_one_run_has(runs_root, name):
    run = make_run(runs_root, "amp-12345678")
    make_run(runs_root, "baseline-87654321")
    assert runs.get(name) == run


def test_get_prefers_the_exact_name(runs_root):
    run = make_run(runs_root, "amp-1")
    make_run(runs_root, "amp-1.2")
    assert runs.get("amp-1") == run


@pytest.mark.parametrize(
    "name, message",
    [
        ("amp", "several runs match 'amp'.*amp-1, amp-2"),
        ("fp8", "no run is called 'fp8'.*amp-1, amp-2, baseline-3"),
        ("", "no run is called ''.*amp-1"),
        ("../amp-1", "no run is called"),
    ],
)
def test_get_lists_the_candidates(runs_root, name, message):
    for known in ("amp-1", "amp-2", "baseline-3"):
        make_run(runs_root, known)
    with pytest.raises(ValueError, match=message):
        runs.get(name)


def test_get_says_how_to_begin_where_there_is_no_run(runs_root):
    with pytest.raises(ValueError, match="none yet: course run launches one"):
        runs.get("amp")


HOSTILE = ["; rm -rf *", "[", "[a-", "../*", "*/../*", "../secret", "/etc/*", "$(touch x)", "**"]


@pytest.fixture
def logged(runs_root: Path) -> Run:
    """A run with logs; outside the runs folder lies a log that nobody may find."""
    secret = runs_root.parent / "secret" / "logs"
    secret.mkdir(parents=True)
    (secret.parent / "launch.json").write_text("{}")
    (secret / "1_0_log.out").write_text("loss=7 [secret] ; rm -rf *")
    run = make_run(runs_root, "amp-1")
    (run.folder / "logs" / "1_0_log.out").write_bytes(b"loss=7 [step 1] \xff")  # not UTF-8
    (run.folder / "logs" / "1_0_log.err").write_text("warning: slow ; rm -rf *")
    return run


@pytest.mark.parametrize("pattern", HOSTILE)
def test_search_log_never_leaves_the_runs_folder(runs_root, logged, pattern):
    found = logs.search_log(pattern, with_err=True)
    also = logs.search_log("*", contains=pattern, with_err=True)
    paths = [path for lists in (found, also) for kind in lists.values() for path in kind]
    assert all(path.resolve().is_relative_to(runs_root.resolve()) for path in paths)
    assert len(logs.search_log(with_err=True)["stderr"]) == 1  # nothing was removed


def test_search_log_takes_text_as_it_stands(logged):
    out, err = logged.logs
    assert logs.search_log(contains="[") == [out]
    assert logs.search_log(contains="l.ss") == []
    assert logs.search_log("amp*", contains="loss=7") == [out]
    assert logs.search_log("baseline*") == []
    found = logs.search_log(contains="; rm -rf *", with_err=True)
    assert found == {"stdout": [], "stderr": [err]}
