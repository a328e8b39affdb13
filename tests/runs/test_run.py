"""Run folders: found in any state of their files, and with one record."""

import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from job_helpers import CONFIG, fill, small_disk
from typer.testing import CliRunner

from course.__main__ import app
from course.jobs.launch import steps_done
from course.runs import files, logs
from course.runs import run as runs
from course.runs.files import write_atomically
from course.runs.record import RECORD_SCHEMA, Record, write_record
from course.runs.run import Run
from course.training.recorder import Recorder


def make_run(root: Path, name: str, record: str | None = None, **request) -> Run:
    """Create a run's folder as a job leaves it, with this text as its record."""
    folder = root / name
    (folder / "logs").mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG.to_json())
    (folder / "launch.json").write_text(json.dumps({"rung": "baseline", **request}))
    if record is not None:
        (folder / "record.json").write_text(record)
    return Run(folder)


def text_of(**values) -> str:
    return json.dumps({"status": "ok", **values})


def test_find_runs_filters_and_sorts(runs_root):
    for number in range(40):
        rung = "amp" if number % 4 == 0 else "baseline"
        started_at = f"2026-01-01T00:{(number * 7) % 60:02}:00"
        record = text_of(rung=rung, step_s=number / 1000, started_at=started_at)
        make_run(runs_root, f"{rung}-{number}", record)
    table = runs.find_runs(rung="amp")
    assert len(table) == 10 and set(table.rung) == {"amp"}
    assert table.started_at.is_monotonic_increasing
    assert len(runs.find_runs()) == 40
    assert len(runs.find_runs(rung="amp", step_s=0.02)) == 1


def test_find_runs_without_records(runs_root):
    assert not runs_root.exists()
    assert runs.find_runs().empty and "step_s" in runs.find_runs().columns
    make_run(runs_root, "amp-1", rung="amp", gpus=2, launched_at="2026-01-01T00:00:00")
    (row,) = runs.find_runs(status="queued").to_dict("records")
    assert (row["rung"], row["gpus"], row["started_at"]) == ("amp", 2, "2026-01-01T00:00:00")


@pytest.mark.parametrize(
    "damaged",
    ['{"status": "ok", "step_s": 0.', '["ok"]', '{"status": "x"}'],
)
def test_a_damaged_record_is_lost_and_not_changed(runs_root, damaged):
    make_run(runs_root, "good", text_of(step_s=0.5))
    run = make_run(runs_root, "bad", damaged)
    table = runs.find_runs().set_index("run")
    assert dict(table.status) == {"good": "ok", "bad": "lost"}
    assert str(run.folder / "record.json") in table.error["bad"]
    assert table.rung["bad"] == "baseline"  # from launch.json
    assert (run.folder / "record.json").read_text() == damaged


def test_damaged_files_of_a_run_are_reported_and_block_nothing(runs_root: Path) -> None:
    """A number where a text belongs cannot be sorted among texts."""
    make_run(runs_root, "good", text_of(started_at="2026-11-30T13:00:00"))
    make_run(runs_root, "number", text_of(started_at=5))
    for name in ("record.json", "steps.jsonl", "config.json", "launch.json"):
        run = make_run(runs_root, name.partition(".")[0])
        (run.folder / name).unlink(missing_ok=True)
        (run.folder / name).mkdir()
    launched_at = make_run(runs_root, "launched").folder / "launch.json"
    launched_at.write_text('{"launched_at": 5, "job_id": "1"}')
    result = CliRunner().invoke(app, ["runs", "--json"])
    assert result.exit_code == 0, result.exception
    rows = {row["run"]: row for row in json.loads(result.stdout)}
    assert rows.keys() == {"good", "number", "record", "steps", "launched"}
    assert "started_at has a wrong type: 5" in rows["number"]["error"]
    assert "record.json cannot be read ([Errno 21] Is a directory" in rows["record"]["error"]
    assert "skipped config: [Errno 21] Is a directory" in result.stderr
    assert CliRunner().invoke(app, ["queue"]).exit_code == 0


def test_records_of_other_versions_are_read(runs_root):
    newer = text_of(schema=RECORD_SCHEMA + 1, step_s=0.25, petaflop_s=3.5)
    record = make_run(runs_root, "newer", newer).record
    assert (record.status, record.step_s, record.schema) == ("ok", 0.25, RECORD_SCHEMA + 1)
    record = make_run(runs_root, "older", text_of(schema=0, step_s=0.25)).record
    assert (record.step_s, record.peak_gib, record.epochs) == (0.25, None, [])


def test_the_first_record_counts_also_among_many_at_once(tmp_path):
    together = threading.Barrier(8, timeout=60)

    def write(number: int) -> str:
        together.wait()
        write_record(tmp_path, Record("failed", error=f"writer {number}"))
        return Run(tmp_path).record.error

    with ThreadPoolExecutor(8) as pool:
        readings = {*pool.map(write, range(8))}
    write_record(tmp_path, Record("ok"))
    assert readings == {Run(tmp_path).record.error}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk(tmp_path, capsys):
    rows = [{"step": step, "loss": 7.0} for step in range(1002)]
    with small_disk(tmp_path / "disk", "64k") as disk:
        run = make_run(disk, "amp-1")
        write_atomically(disk / "launch.json", "old")
        with pytest.raises(OSError, match="No space left"):
            write_atomically(disk / "launch.json", "new" * 100_000)
        assert (disk / "launch.json").read_text() == "old"
        filler = fill(disk, but_bytes=4096)
        Recorder(run).write_steps(rows[:1000])  # the last row that fits is incomplete
        assert "steps.jsonl misses" in capsys.readouterr().err
        with pytest.raises(OSError, match="No space left"):
            write_record(disk, Record("ok"))
        filler.unlink()
        Recorder(run).write_steps(rows[1000:1001])
        Recorder(run).write_steps(rows[1001:])
        assert 1001 in set(run.steps.step)


def test_steps_leave_out_an_incomplete_line(runs_root):
    run = make_run(runs_root, "amp-1")
    assert run.steps.empty
    (run.folder / "steps.jsonl").write_text('{"step": 0, "loss": 7.0}\n{"step": 1, "lo')
    pd.testing.assert_frame_equal(run.steps, pd.DataFrame([{"step": 0, "loss": 7.0}]))


def test_get_accepts_a_part_of_a_name_that_only_one_run_has(runs_root):
    with pytest.raises(ValueError, match="none yet: course run launches one"):
        runs.get("amp")
    for name in ("amp-1", "amp-1.2", "baseline-3"):
        make_run(runs_root, name)
    for part, name in (("amp-1", "amp-1"), ("base", "baseline-3"), ("-3", "baseline-3")):
        assert runs.get(part).name == name
    for part, message in (
        ("amp", "several runs match 'amp'.*amp-1, amp-1.2"),
        ("fp8", "no run is called 'fp8'.*amp-1, amp-1.2, baseline-3"),
        ("", "no run is called ''.*amp-1"),
        ("../amp-1", "no run is called"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.get(part)


@pytest.fixture
def logged_run(runs_root: Path) -> Run:
    """Create a run with logs."""
    run = make_run(runs_root, "amp-1")
    (run.folder / "logs" / "1_0_log.out").write_bytes(b"loss=7 [step 1] \xff")  # not UTF-8
    (run.folder / "logs" / "1_0_log.err").write_text("warning: slow ; rm -rf *")
    return run


def test_logs_larger_than_memory_are_read_in_parts(logged_run):
    out, err = logged_run.logs
    with out.open("r+b") as file:  # across the border of two parts, and far from the end
        file.seek(files.PART_BYTES - 3)
        file.write(b"needle")
        file.truncate(64 * 2**20)
    lines = (*(b'{"step": %d}\n' % step for step in range(10)), b'{"ste')
    (logged_run.folder / "steps.jsonl").write_bytes(b"".join(lines))
    tracemalloc.start()
    assert logs.search_log(contains="needle") == [out]
    assert logs.search_log(contains="needles") == []
    assert logs.search_log() == [out]
    assert files.tail(err) == "warning: slow ; rm -rf *"
    files.tail(out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert steps_done(logged_run) == len(logged_run.steps) == 10


def test_search_log_searches_plain_text(logged_run):
    out, err = logged_run.logs
    assert logs.search_log(contains="[") == [out]
    assert logs.search_log(contains="l.ss") == []
    assert logs.search_log("amp*", contains="loss=7") == [out]
    assert logs.search_log("baseline*") == []
    result = logs.search_log(contains="; rm -rf *", with_err=True)
    assert result == {"stdout": [], "stderr": [err]}
