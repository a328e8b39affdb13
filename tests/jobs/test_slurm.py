"""Runs on a real Slurm: how they start, how they end, and that the record says so."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from job_helpers import (
    CONFIG,
    SCRIPTS,
    SITES,
    eventually,
    expect_no_process,
    launch,
    launch_running,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    printed,
    release,
    slurm_says,
)

from course.config import rung
from course.jobs import launch as jobs
from course.jobs import own_slurm, plan
from course.jobs import slurm as course_slurm
from course.runs import run as runs
from course.runs.ratio import ratio
from tools.slurm_box import control, setup

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
TINY = rung(
    "device",
    quick=True,
    model="resnet18",
    data="synthetic",
    image_px=32,
    batch_size=2,
    steps=3,
    warmup_steps=1,
    val_steps=0,
)


def state(run: runs.Run) -> str:
    number = run.launched["job_id"]
    return slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State").partition(" ")[0]


def test_a_training_run_is_recorded_as_on_this_machine(tmp_path: Path, runs_root: Path) -> None:
    script = narrow_solution(tmp_path)  # which imports PyTorch anew, as a learner's does
    run = jobs.wait(jobs.launch(script, TINY, site="slurm"))
    assert (run.status, run.record.site, run.record.job_id) == (
        "ok",
        "slurm",
        run.launched["job_id"],
    )
    assert run.record.images_per_s > 0 and len(run.steps) == 3
    eventually(lambda: state(run) == "COMPLETED", "Slurm says so too")
    again = jobs.launch(script, TINY, site="slurm")
    assert again.folder == run.folder


def test_a_run_launched_in_a_step_of_a_job_has_its_own_cores(
    slurm: Path, tmp_path: Path, runs_root: Path
) -> None:
    """A notebook or terminal inside a job, which Slurm's task/affinity binds to the job's cores."""
    script = tmp_path / "cores.py"
    script.write_text(
        "import os\nkept = [name for name in os.environ if name.startswith(('PMI', 'OUTER'))]\n"
        "print('cores', os.sched_getaffinity(0), kept, os.environ['SLURM_CONF'])\n"
    )
    code = (
        "import sys; from course.jobs import launch; from course.config import rung\n"
        "launch.launch(sys.argv[1], rung('baseline', quick=True), site='slurm', rerun=True)\n"
    )
    begin = [sys.executable, "-c", code, str(script)]
    outer = ("env", "OUTER=1", "PMI_RANK=0", "SLURM_HINT=nomultithread")
    printed_lines = []
    # In no step; then in steps with one core of a node, which is not the core of the run's job.
    for step in ([], ["srun", "-n1", "-wnode1"], ["srun", "-n1", "-wnode2"]):
        slurm_says(*outer, *step, *begin)
        run = over(runs.all_runs()[-1])
        assert run.status == "ok", jobs.explain(run)
        printed_lines += [line for line in printed(run).splitlines() if line.startswith("cores")]
    assert len(printed_lines) == 3 and len({*printed_lines}) == 1
    assert f"}} ['OUTER'] {slurm}/slurm.conf" in printed_lines[0]


STEPS = rung("baseline", quick=True, steps=40, warmup_steps=2, val_steps=0, lr=0.05)


@pytest.fixture
def sleeps(tmp_path: Path) -> Path:
    """The script of STEPS, for a fork to execute."""
    script = tmp_path / "steps.py"
    script.write_text((SCRIPTS / "steps.py").read_text())
    return script


def test_runs_that_take_turns_are_one_job_in_one_allocation(sleeps: Path, runs_root: Path) -> None:
    configs = [STEPS, replace(STEPS, rung="slower", lr=0.1)]
    both = jobs.launch_all(sleeps, configs, turns=True, site="slurm")
    assert len({run.launched["job_id"] for run in both}) == 1
    assert [over(run).status for run in both] == ["ok", "ok"]
    assert ratio(both[1], both[0]).turns >= 8
    eventually(lambda: state(both[0]) == "COMPLETED", "Slurm says so too")
    assert jobs.launch_all(sleeps, configs, turns=True, site="slurm") == both


def test_a_cancelled_member_leaves_the_job_to_the_others(sleeps: Path, runs_root: Path) -> None:
    long = replace(STEPS, steps=4000)
    a, b = jobs.launch_all(sleeps, [long, replace(long, rung="other")], turns=True, site="slurm")
    eventually(lambda: len(a.steps) > 6 and len(b.steps) > 6, "turns are taken")
    jobs.cancel(b)
    done = len(a.steps)
    eventually(lambda: len(a.steps) > done + 20, "the other goes on")
    assert (jobs.refresh(a), b.status) == ("running", "cancelled")
    jobs.cancel(a)
    eventually(lambda: state(a).startswith("CANCELLED"), "Slurm ended the job")


def test_ranks_on_two_nodes_take_one_turn(
    tmp_path: Path, runs_root: Path, user_sites: Path
) -> None:
    user_sites.write_text("[slurm]\ngpus_per_node = 1\n")
    script = narrow_solution(tmp_path)
    small = replace(TINY, steps=6, batch_size=4)
    before = over(jobs.launch(script, small, site="slurm"))
    run = jobs.launch(script, small, site="slurm", gpus=2, against=before)
    jobs.wait(run, timeout_s=180)
    assert run.status == "ok", jobs.explain(run)
    assert ratio(run, before).turns == run.record.turns > 0


def test_what_is_shown_is_what_sbatch_got(
    tmp_path: Path, user_sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "my runs; it's"))
    user_sites.write_text(
        '[slurm]\nqos = "normal"\npartition = "urgent"\nsbatch = ["nice=5"]\n'
        'setup = ["module() { :; }", "module load x"]\n'
    )
    script, asked = SCRIPTS / "ok_light.py", {"site": "slurm", "time_min": 7}
    before = plan.preview(script, CONFIG, **asked)
    run = over(launch("ok_light.py", **asked))
    assert run.status == "ok", jobs.explain(run)
    assert before == plan.batch_script(run)
    words = (
        "sacct",
        "-X",
        "-n",
        "-P",
        "-j",
        run.launched["job_id"],
        "-o",
        "JobName,Partition,QOS,TimelimitRaw,ReqTRES",
    )
    eventually(
        lambda: slurm_says(*words).startswith(f"{run.name}|urgent|normal|9|"),
        "accounting has what was asked for",
    )
    assert "gres/gpu=1" in slurm_says(*words)


def test_a_script_that_raises_is_failed_with_its_words(runs_root: Path) -> None:
    run = over(launch("raises.py", site="slurm"))
    assert run.status == "failed"
    assert run.record.error
    eventually(lambda: state(run) == "FAILED", "Slurm says so too")


def test_a_run_past_its_time_is_a_timeout(runs_root: Path) -> None:
    run = over(launch("holds.py", site="slurm", time_min=0.05))
    assert run.status == "timeout", jobs.explain(run)
    eventually(lambda: state(run) == "FAILED", "accounting does not call it completed")


def test_cancelling_a_running_and_a_waiting_one(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text(SITES)
    running = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm", gpus=8)
    assert [jobs.refresh(running), jobs.refresh(waiting)] == ["running", "queued"]
    for run in (waiting, running):
        jobs.cancel(run)
        assert run.status == "cancelled"
    eventually(lambda: state(running) == state(waiting) == "CANCELLED", "Slurm says so too")
    assert not waiting.started
    expect_no_process(runs_root)


def test_cancelling_without_the_controller_says_so_and_changes_nothing(
    runs_root: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch_running("holds.py", site="slurm")
    monkeypatch.setattr(course_slurm, "CANCEL_S", 0)
    stopped = own_slurm.programs(slurm)["slurmctld"]
    stopped.send_signal(signal.SIGTERM)
    stopped.wait(20)
    with pytest.raises(jobs.JobError, match="is not cancelled: Slurm does not answer"):
        jobs.cancel(run)
    assert run.record is None
    control.up()
    eventually(lambda: jobs.cancel(run).status == "cancelled", "now it is")
    eventually(lambda: state(run) == "CANCELLED", "Slurm says so too")


def test_an_interrupted_launch_leaves_no_job(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(course_slurm, "_forget", interrupted)  # just after sbatch has answered
    root = os.environ["COURSE_RUNS"]
    with pytest.raises(KeyboardInterrupt):
        launch("holds.py", site="slurm")
    assert not [path for path in Path(root).glob("*/launch.json")]
    eventually(lambda: not slurm_says("squeue", "-h", "--states=PENDING,RUNNING"), "no job is left")


def test_accounting_is_away_when_a_job_ends(runs_root: Path, slurm: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    own_slurm.programs(slurm)["slurmdbd"].kill()
    slurm_says("scancel", run.launched["job_id"])
    eventually(lambda: not slurm_says("squeue", "-h"), "the job is over")
    assert jobs.refresh(run) in ("queued", "running") and run.record is None
    control.up()
    assert over(run).status == "cancelled"


def test_cancelled_behind_the_courses_back(runs_root: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    slurm_says("scancel", run.launched["job_id"])
    assert over(run).status == "cancelled"
    assert "Slurm: CANCELLED" in run.record.error


def test_logs_that_a_node_cannot_write_are_the_first_suspect(
    runs_root: Path, user_sites: Path
) -> None:
    user_sites.write_text(SITES)
    holding = launch_running("holds.py", site="whole", gpus=2)
    run = launch("ok_light.py", site="slurm")
    (run.folder / "logs").rename(run.folder / "elsewhere")  # as where a node lacks the disk
    release(holding)
    assert over(run).status == "failed"
    assert "No log was written: does the node see" in run.record.error


def test_ten_in_a_row_all_arrive_and_none_twice(runs_root: Path) -> None:
    """Two more than there are GPUs: some wait."""
    configs = [rung("baseline", quick=True, rung=f"number-{n}") for n in range(10)]
    launched = [launch("ok_light.py", site="slurm", config=config) for config in configs]
    again = [launch("ok_light.py", site="slurm", config=config) for config in configs]
    assert [run.folder for run in again] == [run.folder for run in launched]
    assert len({run.launched["job_id"] for run in launched}) == 10
    jobs.wait(launched, timeout_s=400)
    assert {run.record.job_id for run in launched} == {run.launched["job_id"] for run in launched}
    assert len(runs.find_runs(status="ok")) == 10


def test_a_wiped_controller_gives_numbers_anew_and_no_run_takes_another_for_its_own(
    runs_root: Path, user_sites: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job ids begin again after an accident; accounting and old folders know them already."""
    user_sites.write_text(SITES)
    done = over(launch("ok_light.py", site="slurm"))
    holding = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm", gpus=2)
    control.down()
    shutil.rmtree(slurm / "state")
    monkeypatch.setattr(setup, "_first_job", lambda _: int(done.launched["job_id"]))
    control.up()
    configs = [rung("baseline", quick=True, rung=f"anew-{number}") for number in range(3)]
    anew = [launch("ok_light.py", site="slurm", config=config) for config in configs]
    before = [run.launched["job_id"] for run in (done, holding, waiting)]
    assert [run.launched["job_id"] for run in anew] == before
    assert {jobs.refresh(run) for run in (holding, waiting)} <= {"lost", "cancelled"}
    jobs.wait(anew)
    assert [run.status for run in (done, *anew)] == ["ok"] * 4


def gone_from_its_node(run: runs.Run) -> bool:
    """Is nothing left of the job? Slurm says so before its last step has really ended."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            number = run.launched["job_id"]
            if f"[{number}." in " ".join(process.cmdline()):  # slurmstepd: [17.batch]
                return False
            if process.environ().get("SLURM_JOB_ID") == number:
                return False
    return True


def restart_now(run: runs.Run) -> None:
    """Slurm lets a job wait two minutes that it has put back: not here."""
    eventually(lambda: gone_from_its_node(run), "nothing is left of it")
    assert jobs.refresh(run) == "queued"
    slurm_says("scontrol", "update", f"jobid={run.launched['job_id']}", "starttime=now")


def test_the_cluster_is_ended_under_a_run(runs_root: Path, user_sites: Path, slurm: Path) -> None:
    user_sites.write_text(SITES)
    running = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm")
    control.down()
    expect_no_process(runs_root)
    assert [over(run).status for run in (running, waiting)] == ["lost", "lost"]
    assert "course slurm up starts it" in waiting.record.error
    control.up()
    assert slurm_says("squeue", "-h") == ""  # nothing goes on by itself
    assert over(launch("ok_light.py", site="slurm")).status == "ok"


def test_preempted_put_back_and_begun_anew(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text(SITES)
    run = launch_running("holds.py", site="whole", gpus=2)
    first_start = run.started
    urgent = over(launch("ok_light.py", site="urgent", gpus=2))
    assert urgent.status == "ok", jobs.explain(urgent)
    restart_now(run)
    eventually(lambda: run.started not in ({}, first_start), "it has begun anew")
    release(run)
    assert over(run).status == "ok", jobs.explain(run)
    # Not asked of accounting, which was seen not to say COMPLETED for two minutes.
    number = run.launched["job_id"]
    gone = lambda: number not in slurm_says("squeue", "-h", "-o", "%i").split()  # noqa: E731
    eventually(gone, "it has left Slurm's queue")
    words = ("sacct", "-n", "-X", "-D", "-P", "-j", number, "-o", "State")
    states = lambda: slurm_says(*words).splitlines()  # noqa: E731
    eventually(lambda: len(states()) == 2, "accounting knows of both its lives", 60)
    assert states()[0] == "PREEMPTED"


@pytest.mark.parametrize("put_back", [False, True])
def test_a_node_goes_down_under_a_run(
    runs_root: Path, user_sites: Path, slurm: Path, put_back: bool
) -> None:
    user_sites.write_text(f"[slurm]\nsbatch = ['{'requeue' if put_back else 'no-requeue'}']\n")
    run = launch_running("holds.py", site="slurm")
    first_start, number = run.started, run.launched["job_id"]
    node = slurm_says("squeue", "-h", "-j", number, "-o", "%N")
    for process in [own_slurm.programs(slurm)[node], *control._strays(slurm)]:
        process.kill()  # as by a power cut: the node says nothing more
    if put_back:
        eventually(
            lambda: slurm_says("squeue", "-h", "-j", number, "-o", "%T") == "PENDING",
            "Slurm has noticed, and put it back",
        )
        restart_now(run)
        eventually(lambda: run.started not in ({}, first_start), "it has begun anew")
        release(run)
        assert over(run).status == "ok", jobs.explain(run)
        assert slurm_says("sacct", "-n", "-X", "-P", "-j", number, "-o", "NodeList") != node
    else:
        assert over(run).status == "lost"
        assert "Slurm: NODE_FAIL" in run.record.error
        assert state(run) == "NODE_FAIL"
    assert control.up()["nodes"] == "2 of 2 ready"  # the node comes back, and takes jobs


def test_the_controller_restarts_while_a_run_computes(runs_root: Path, slurm: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    own_slurm.programs(slurm)["slurmctld"].send_signal(signal.SIGTERM)
    eventually(lambda: "slurmctld" not in own_slurm.programs(slurm), "it is gone")
    assert jobs.refresh(run) == "running"  # nobody can say otherwise
    control.up()
    assert jobs.refresh(run) == "running"
    release(run)
    assert over(run).status == "ok", jobs.explain(run)


@pytest.mark.parametrize(
    "settings, said",
    [
        ('partition = "moon"', "no partition 'moon' here: choose one of gpu, urgent"),
        ('partition = "urgent"\ntime_min = 600', "time_min=600 is too long.*: at most 118"),
        (
            "gpus_per_node = 8",
            r"Slurm refused .*Partitions here: gpu \(gpu:4 a node, at most 1200 min",
        ),
        ('constraint = "h100"', "Slurm refused the job: .*Invalid feature"),
    ],
)
def test_what_slurm_cannot_run_leaves_no_run(
    runs_root: Path, user_sites: Path, settings: str, said: str
) -> None:
    user_sites.write_text(f"[slurm]\n{settings}\n")
    with pytest.raises(ValueError, match=said):
        launch("ok_light.py", site="slurm", gpus=8 if "per_node" in settings else 1)
    assert runs.all_runs() == []


def test_printed_text_is_found_in_the_logs(runs_root: Path) -> None:
    assert "all is well" in printed(over(launch("ok_light.py", site="slurm")))


def test_a_task_imports_nothing_from_the_folder_it_was_launched_in(
    runs_root: Path, planted: Path
) -> None:
    run = over(launch("ok_light.py", site="slurm"))
    assert run.status == "ok" and not planted.exists(), jobs.explain(run)


def test_a_run_whose_start_failed_is_explained_and_released(slurm: Path, runs_root: Path) -> None:
    """As when the controller ends within a second of it; here a node has no place for the job."""
    places = [slurm / "spool" / node for node in setup.NODES]
    for place in places:
        place.rename(place.with_suffix(".aside"))
        place.touch()
    try:
        run = launch("ok_light.py", site="slurm")
        eventually(lambda: "course slurm up releases it" in waits(run), "it is held")
    finally:
        for place in places:
            place.unlink()
            place.with_suffix(".aside").rename(place)
    control.up()
    eventually(lambda: waits(run).startswith("BeginTime"), "Slurm may start it")


def waits(run: runs.Run) -> str:
    """The reason that the queue gives for a run."""
    return course_slurm.queue_states([run]).get(run.name, {}).get("reason", "")
