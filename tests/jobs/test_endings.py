"""Every way in which a job can end, caused for real, leaves the right record."""

import json
import os
import re
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import (
    CONFIG,
    DEADLINE_S,
    SCRIPTS,
    SHORT,
    eventually,
    expect_no_process,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    over,
    printed,
    processes_of,
    steps_script,
    trainings_of,
)
from typer.testing import CliRunner

from course import report
from course.__main__ import app
from course.config import change
from course.jobs import launch as jobs
from course.jobs.processes import of_runs
from course.runs import ranks

needs_two_cores = pytest.mark.skipif(os.cpu_count() < 2, reason="one process a core: needs two")


def test_a_huge_message_in_colours_keeps_its_type_in_record_and_log(runs_root, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('\\x1b[31mred\\x00\\r' + 'x' * 100_000 + ' the end')")
    run = over(jobs.launch(script, CONFIG))
    assert run.record.status == "failed" and 'train.py", line 1' in run.record.error
    for text in (run.record.error, run.explain(), run.tail(err=True, lines=20)):
        assert "\nValueError: red\nxxx" in text and "x the end" in text
        assert len(text) < 5000 and not {*text} & {"\x1b", "\r", "\0"}


def test_a_fault_in_the_data_is_not_blamed_on_the_script(runs_root, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from course.data.images import open_image\n"
        "from course.training.recorder import recording\n"
        "with recording():\n    open_image(__file__)\n"
    )
    run = over(jobs.launch(script, CONFIG))
    assert re.match("DataError: .*train.py cannot be decoded", run.record.error)
    assert "train.py, line" not in run.record.error
    assert "The cause is the data, not the script" in run.explain()


@pytest.mark.parametrize(
    "lines, error",
    [
        ({"inside": "exit()"}, "the script ended in step 0 of 8 (exit code 0)"),
        ({"inside": "number == 2 and sys.exit(0)"}, "the script ended in step 2 of 8 (exit"),
        ({"inside": "os._exit(0)"}, "the script ended in step 0 of 8 (exit code 0)"),
        ({"inside": "if number == 3: break"}, "the script ended in step 6 of 8: a run"),
        ({"inside": "if number == 3: return"}, "the script ended in step 3 of 8: a run"),
        ({"after": "break"}, "the script ended in step 4 of 8: a run"),
        ({"before": "sys.exit()"}, "the script ended before its first step (exit code 0)"),
    ],
)
def test_a_script_that_ends_early_has_failed(runs_root, tmp_path, lines, error):
    """An exit code of 0 proves nothing; and what failed is launched again."""
    script = steps_script(tmp_path, **lines)
    run = over(jobs.launch(script, SHORT))
    assert run.status == "failed" and error in run.record.error
    assert run.record.images_per_s is None or run.record.steps_measured
    again = jobs.launch(script, SHORT)
    assert again != run
    again.cancel()


@pytest.mark.parametrize("line", ["exit()", "sys.exit(0)"])
def test_an_exit_after_the_last_step_is_ok(runs_root, tmp_path, line):
    run = over(jobs.launch(steps_script(tmp_path, end=line), SHORT))
    assert (run.status, run.record.steps_measured) == ("ok", 8), run.explain()
    assert run.record.load > 0


def test_images_that_end_or_a_budget_end_a_run_that_is_ok(runs_root, tmp_path):
    script = steps_script(tmp_path)
    few = script.with_name("few.py")
    few.write_text(script.read_text().replace("* run.config.steps", "* 3"))
    run = over(jobs.launch(few, SHORT))
    assert (run.status, run.record.steps_measured) == ("ok", 6), run.explain()
    slow = steps_script(tmp_path, inside="__import__('time').sleep(0.6)")  # longer than a budget
    run = over(jobs.launch(slow, replace(SHORT, epochs=1, steps=16, budget_s=0.5)))
    assert run.status == "ok" and run.record.steps_measured < 16, run.explain()


@needs_two_cores
@pytest.mark.parametrize("call", ["sys.exit(0)", "os._exit(0)"])
def test_one_rank_that_ends_early_fails_the_run(runs_root, tmp_path, call):
    script = steps_script(tmp_path, inside=f"run.rank and {call}")
    run = over(jobs.launch(script, SHORT, gpus=2))
    assert run.status == "failed"
    assert "rank 1: " in run.record.error
    assert "the script ended in step 0 of 8 (exit code 0)" in run.record.error


def test_a_script_without_meter_is_not_measured_and_says_so(runs_root):
    run = over(launch("ok_light.py"))
    record = run.record
    assert (record.config, record.data, record.machine) == ({}, "", "")
    assert record.not_measured.startswith("the script does not call meter.steps(…)")
    assert json.loads((run.folder / "record.json").read_text())["config"] == {}
    with pytest.raises(jobs.JobError, match="not measured: the script does not call meter.steps"):
        report(run)
    shown = CliRunner().invoke(
        app, ["run", str(SCRIPTS / "ok_light.py"), "--quick", "--against", run.name]
    )
    assert "images/s  not measured: the script does not call meter.steps(…)" in shown.output
    assert "No ratio: " in shown.output and shown.exit_code == 0


def test_two_runs_in_turns_print_their_ratio(runs_root, tmp_path):
    script = steps_script(tmp_path, inside="__import__('time').sleep(0.001)")
    baseline = over(jobs.launch(script, replace(CONFIG, budget_s=0.5)))
    faster = script.with_name("faster.py")
    faster.write_text(script.read_text() + "print('another script')\n")
    words = ["run", str(faster), "--quick", "--set", "budget_s=0.5", "--against", baseline.name]
    shown = CliRunner().invoke(app, words)
    assert "baseline against baseline: " in shown.output and "× (" in shown.output
    assert "The two computed in turns" in shown.output
    assert "same computation" not in shown.output, "the scripts differ"


LIBRARY = """
import types
library = types.ModuleType("library")
code = compile("def call(error): raise error", "/x/site-packages/library.py", "exec")
exec(code, library.__dict__)
"""


@pytest.mark.parametrize(
    "error, advice",
    [
        ("OSError(28, 'No space left on device')", "not the script's fault: free some disk"),
        ("OSError(116, 'Stale file handle')", "not the script's fault: follow the message"),
        (
            "RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed.')",
            "not the script's fault: follow",
        ),
        ("RuntimeError('Failed to find C compiler.')", "not the script's fault: follow"),
        ("RuntimeError('Found no NVIDIA driver')", "not the script's fault: follow"),
        ("ImportError('libx.so.1: cannot open shared object file')", "not the script's fault"),
        ("RuntimeError('Connection closed by peer')", "Another rank ended first"),
        ("ModuleNotFoundError('No module named cv3')", "The environment may be the cause"),
        ("ValueError('3 images, expected 4')", "Fix the cause in"),
    ],
)
@pytest.mark.parametrize("place", ["inside", "before"])  # the recorder, or the log's end
def test_the_script_is_blamed_only_for_its_own_errors(runs_root, tmp_path, error, advice, place):
    script = steps_script(tmp_path, **{place: f"library.call({error})"})
    script.write_text(LIBRARY + script.read_text())
    run = over(jobs.launch(script, SHORT))
    text = run.explain()
    assert run.status == "failed" and advice in text
    if place == "inside":  # a line of the script is named only if its error may be there
        names_line = f"mine.py, line {line_of(script, 'library.call(')})" in text
        assert names_line == error.startswith(("ValueError", "ModuleNotFoundError"))


def line_of(script: Path, words: str) -> int:
    return next(n for n, line in enumerate(script.read_text().splitlines(), 1) if words in line)


def test_a_helper_or_no_one_is_blamed(runs_root, tmp_path):
    helper = tmp_path / "my_helper.py"
    helper.write_text("def call():\n    raise ValueError('wrong')\n")
    script = steps_script(
        tmp_path,
        before=f"sys.path.append({str(tmp_path)!r})",
        inside="import my_helper; my_helper.call()",
    )
    run = over(jobs.launch(script, SHORT))
    assert run.record.error == "ValueError: wrong (my_helper.py, line 2)"
    assert "Fix the cause in my_helper.py, and" in run.explain()
    run = over(jobs.launch(steps_script(tmp_path, inside="sys.exit(7)"), SHORT))
    assert "the script ended with code 7" in run.record.error
    assert "The error names no line of" in run.explain()


def test_a_killed_worker_blames_no_line_even_without_a_record(runs_root, tmp_path):
    """A second worker's death can interrupt the script while it writes down the first one's."""
    printed = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed."
    )
    dies = f"import os; print({printed!r}, file=sys.stderr, flush=True); os._exit(1)"
    run = over(jobs.launch(steps_script(tmp_path, inside=dies), SHORT))
    headline = run.record.error.splitlines()[0]
    assert "with code 1)" in headline and "ended from outside" in headline, headline
    assert ", line" not in headline


def test_a_missing_compiler_is_not_the_scripts_fault(runs_root, tmp_path):
    lines = (
        "import torch._inductor.config as c; c.cpp.cxx = (None, '/nowhere/g++'); "
        "c.force_disable_caches = True; torch.compile(lambda x: x * 2 + 1)(torch.ones(8))"
    )
    run = over(jobs.launch(steps_script(tmp_path, inside=lines), SHORT))
    assert "No working C++ compiler" in run.record.error
    assert "This is not the script's fault" in run.explain()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the fork server")
def test_the_fork_servers_end_is_not_the_scripts_fault(runs_root):
    """The system may end it for its memory, and multiprocessing reports code 255."""
    run = launch_running("holds.py")
    eventually(lambda: trainings_of(run) == 1, "the process has begun")
    (training,) = [p for p in of_runs(run) if p.name() == run.script.name]
    os.kill(training.ppid(), signal.SIGKILL)
    assert over(run).status == "lost"
    assert run.record.error.startswith("the process from which scripts are started was killed")
    assert "Fix the cause" not in run.explain()
    again = over(launch("ok_light.py"))  # another one was started
    assert again.status == "ok"


def test_ok(runs_root):
    run = launch("ok_light.py")
    assert run.wait(timeout_s=DEADLINE_S) is run
    record = run.record
    assert (record.status, record.error, record.job_id) == ("ok", "", run.launched["job_id"])
    assert record.started_at and record.ended_at >= record.started_at
    assert "all is well" in printed(run)
    assert not (run.folder / "reserve.bin").exists()
    before = (run.folder / "record.json").read_bytes()
    run.cancel()  # it is over, and stays as it is
    assert (run.folder / "record.json").read_bytes() == before


def test_time_limit(runs_root):
    run = over(launch("holds.py", time_min=0.05))
    assert run.record.status == "timeout"
    assert 0 < run.record.wall_s < DEADLINE_S
    assert run.record.error == "still running after its 0.05 minutes"
    assert "time_min" in run.explain()


def test_a_killed_process_is_lost_with_its_last_words(runs_root):
    record = over(launch("kills_itself.py")).record
    assert record.status == "lost"
    assert "killed by SIGKILL" in record.error and "the last words" in record.error


@needs_two_cores
def test_two_processes_reduce_and_leave_one_record(runs_root, monkeypatch):
    """Also from a rank of torchrun in a Slurm step, whose port another program has by now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outer = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": taken.getsockname()[1], "RANK": 7}
        outer |= {"WORLD_SIZE": 9, "LOCAL_RANK": 7, "SLURM_PROCID": 7, "SLURM_JOB_ID": 5}
        for name, value in (outer | {"TORCHELASTIC_USE_AGENT_STORE": True}).items():
            monkeypatch.setenv(name, str(value))
        run = launch("all_reduces.py", gpus=2)
        run.wait(timeout_s=DEADLINE_S)
    assert (run.record.gpus, run.record.last_loss) == (2, 3.0)
    lines = sorted(line for line in printed(run).splitlines() if line.startswith("rank"))
    ranks_met, ports = zip(*(line.split(", met at port ") for line in lines))
    assert ranks_met == ("rank 0 of 2: 3", "rank 1 of 2: 3") and len({*ports}) == 1
    assert printed(run).count("NCCL gives up after 1000 ms") == 2
    addresses = {line for line in printed(run).splitlines() if line.startswith("listens")}
    assert addresses == {"listens at 127.0.0.1"}, "another machine could connect"
    assert len(run.logs) == 4 and len(run.record.logs) == 4
    assert [path.name for path in runs_root.rglob("record.json")] == ["record.json"]


@needs_two_cores
def test_processes_that_go_on_later_meet_again(runs_root, tmp_path):
    script = tmp_path / "goes_on.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "place = Path('rank' + os.environ['RANK'])\n"
        "if not place.exists():\n    place.touch()\n    sys.exit(75)\n"
        + (SCRIPTS / "all_reduces.py").read_text()
    )
    run = over(jobs.launch(script, change(CONFIG, {"save_every": 1, "budget_s": 0.0}), gpus=2))
    assert (run.status, run.record.last_loss) == ("ok", 3.0), run.explain()


@needs_two_cores
def test_one_rank_that_fails_late_fails_the_run(runs_root, monkeypatch):
    monkeypatch.setenv("COURSE_FAILING_RANK", "1")
    run = over(launch("one_rank_fails.py", gpus=2))
    assert run.record.status == "failed"
    assert "this rank failed" in run.record.error


@needs_two_cores
def test_a_killed_job_of_two_is_lost_and_leaves_no_process(runs_root):
    run = launch("holds.py", gpus=2)
    eventually(lambda: trainings_of(run) == 2, "both processes have begun")
    eventually(lambda: all("holding" in path.read_text() for path in run.logs[2:]), "they print")
    os.kill(run.started["supervisor"][0], signal.SIGKILL)
    eventually(lambda: jobs.refresh(run) == "lost", "a dead job is seen")
    assert "supervisor was killed" in run.record.error and "holding" in run.record.error
    expect_no_process(runs_root)


@needs_two_cores
def test_two_ranks_that_ignore_every_signal_and_a_waiting_run_are_cancelled(runs_root, tmp_path):
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "open('stubborn' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(120)\n"
    )
    run = jobs.launch(script, CONFIG, gpus=2)
    waiting = launch("holds.py", config=replace(CONFIG, seed=1))
    eventually(lambda: len([*run.folder.glob("stubborn?")]) == 2, "both ignore signals")
    waiting.cancel()
    assert waiting.status == "cancelled" and not waiting.started
    assert jobs.refresh(run) == "running"
    began = time.monotonic()
    run.cancel()
    assert time.monotonic() - began < 10
    assert (run.status, run.record.error) == ("cancelled", "cancelled on request")
    assert processes_of(runs_root) == []


NCCL = (
    Path(__file__).parent.parent / "golden" / "nccl_hang"
)  # from two H200s, PyTorch 2.11; one log per rank
ENDS_AS_NCCL_DID = f"""
import os, sys, time
from pathlib import Path
sys.stderr.write(Path({str(NCCL)!r}, f"rank-{{os.environ['RANK']}}.err").read_text())
sys.stderr.flush()
Path(f"said-{{os.environ['RANK']}}").touch()
while len([*Path().glob("said-*")]) < 2:
    time.sleep(0.05)
os.abort()
"""
HUNG = [
    "rank 0: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=10000) ran for 10032 milliseconds (train.py, line 122). "
    "This rank waited for another that did not come",
    "rank 1: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50, OpType=BROADCAST, "
    "NumelIn=53120, NumelOut=53120, Timeout(ms)=10000) ran for 10014 milliseconds (train.py, line "
    "108). This rank waited for another that did not come",
]
WHERE = (
    "Where they waited: rank 0 in ALLREDUCE of 1 number (its collective 50; train.py, line 122), "
    "rank 1 in BROADCAST of 53120 numbers (its collective 50; train.py, line 108)"
)


@needs_two_cores
def test_a_hang_that_nccl_ends_names_each_ranks_collective(runs_root, tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(ENDS_AS_NCCL_DID)
    run = over(jobs.launch(script, CONFIG, gpus=2))
    assert run.status == "failed"
    assert run.record.error.startswith(tuple(HUNG)) and run.record.error.endswith(WHERE)
    assert "frame #" not in run.record.error and "\n" not in run.record.error
    table = ranks.rank_table(run)
    assert list(table["status"]) == ["failed", "failed"]
    for error, said in zip(table["error"], HUNG, strict=True):
        assert error.startswith(said) and "frame #" not in error and "Where" not in error
