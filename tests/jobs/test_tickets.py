"""One job at a time: the order of turns, however earlier runs ended."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import (
    CONFIG,
    DEADLINE_S,
    SCRIPTS,
    eventually,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    over,
    processes_of,
    release,
    runs_root_at,
    trainings_of,
)

from course.jobs import launch as jobs
from course.jobs import queue as queues
from course.runs.errors import JobError
from course.runs.run import all_jobs


def test_runs_take_their_turns_in_the_order_of_launch(runs_root):
    configs = [replace(CONFIG, seed=seed) for seed in range(4)]
    launched = jobs.launch_all(SCRIPTS / "sleeps.py", configs)
    assert jobs.wait(launched, timeout_s=DEADLINE_S) == launched
    intervals = [json.loads((run.folder / "interval.json").read_text()) for run in launched]
    for (_, ended), (began, _) in zip(intervals, intervals[1:]):
        assert ended <= began


def test_the_time_in_the_queue_is_not_part_of_the_time_limit(runs_root):
    limit_s = 10.0  # ample for a run that only sleeps for half a second
    first = launch_running("holds.py")
    waiting = launch("sleeps.py", time_min=limit_s / 60)
    time.sleep(limit_s)
    assert jobs.refresh(waiting) == "queued"
    release(first)
    assert over(waiting).status == "ok"


def test_runs_of_two_runs_folders_take_turns(runs_root, tmp_path):
    first = launch_running("holds.py")
    with runs_root_at(tmp_path / "other"):
        second = launch("sleeps.py")
        time.sleep(1)  # enough for a run that does not wait to begin
        assert jobs.refresh(second) == "queued"
        release(first)
        assert over(second).status == "ok"


def test_a_run_whose_folder_was_removed_can_be_launched_again(runs_root):
    first = launch_running("holds.py")
    waiting = launch("ok_light.py")
    waiting.cancel()
    shutil.rmtree(waiting.folder)  # its ticket stays, and names the folder of the next launch
    again = launch("ok_light.py")
    assert again.folder == waiting.folder
    release(first)
    assert over(again).status == "ok"


def test_what_is_left_of_a_dead_run_does_not_compute_beside_the_next(runs_root):
    first = launch_running("holds.py")
    second = launch("holds.py", config=replace(CONFIG, seed=1))
    kill_job(first)
    eventually(lambda: jobs.refresh(second) == "running", "the next run has its turn")
    assert trainings_of(first) == 0


def kill_job(run) -> None:
    """Kill the job's supervisor, as the kernel does when memory runs out."""
    os.kill(run.started["supervisor"][0], signal.SIGKILL)


def test_work_after_the_record_is_not_cut_short_by_the_next_run(runs_root):
    first = launch("tidies_up.py")
    second = launch("ok_light.py")
    assert over(second).status == "ok"
    assert (first.folder / "tidied").exists()


def test_cancelling_many_runs_waits_once_for_all(runs_root):
    configs = [replace(CONFIG, seed=seed) for seed in range(12)]
    launched = [launch("holds.py", config=config) for config in configs]
    began = time.monotonic()
    jobs.cancel(launched)
    assert time.monotonic() - began < 8
    assert {run.status for run in launched} == {"cancelled"} and processes_of(runs_root) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_run_that_another_user_left_starts_and_ends_nothing(
    is_link: bool, runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files name a program to start, and processes to end."""
    ticket, theirs = tmp_path / "queue" / "1", runs_root / "theirs"
    ticket.parent.mkdir()
    ticket.write_text(json.dumps({"needs": {"python": "/bin/true", "env": {}, "cores": [0]}}))
    theirs.mkdir(parents=True)
    request = {"launched_at": "2026-11-30T13:00:00", "job_id": "1", "ticket": str(ticket)}
    (theirs / "launch.json").write_text(json.dumps(request))
    (theirs / "config.json").write_text("{}")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as mine:
        started = {"host": "", "started_at": "2026-11-30T13:00:00", "supervisor": [1, 1]}
        started["processes"] = [[mine.pid, 1]]
        (theirs / "started.json").write_text(json.dumps(started))
        if is_link:  # to a folder of mine to which they can write, such as a class's drop box
            theirs.symlink_to(theirs.rename(tmp_path / "drop"))
        os.chown(theirs, 54_321, 54_321, follow_symlinks=False)
        with monkeypatch.context() as patch:
            patch.setenv("COURSE_TRUST", "")
            for act in (queues.table, all_jobs, lambda: launch("ok_light.py")):
                with pytest.raises(JobError, match="theirs: user 54321, its owner, can change it"):
                    act()
        assert mine.poll() is None and not (ticket.parent / "supervisor.log").exists()
        mine.kill()
    theirs.unlink() if is_link else shutil.rmtree(theirs)
