"""Runs on a real Slurm: how they start, how they end, and that the record says so."""

import sys
from dataclasses import replace
from pathlib import Path

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
from course.runs import run as runs
from course.runs.ratio import ratio
from tools.slurm_box import control

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


def test_a_training_run_is_recorded_as_on_this_machine(
    tmp_path: Path, runs_root: Path, planted: Path
) -> None:
    script = narrow_solution(tmp_path)
    run = jobs.wait(jobs.launch(script, TINY, site="slurm"))
    assert (run.status, run.record.site, run.record.job_id) == (
        "ok",
        "slurm",
        run.launched["job_id"],
    )
    assert run.record.images_per_s > 0 and len(run.steps) == 3
    assert not planted.exists()  # no task imports from the folder it was launched in
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
    # In no step; then in a step with one core of a node, which is not the core of the run's job.
    for step in ([], ["srun", "-n1", "-wnode2"]):
        slurm_says(*outer, *step, *begin)
        run = over(runs.all_runs()[-1])
        assert run.status == "ok", jobs.explain(run)
        printed_lines += [line for line in printed(run).splitlines() if line.startswith("cores")]
    assert len(printed_lines) == 2 and len({*printed_lines}) == 1
    assert f"}} ['OUTER'] {slurm}/slurm.conf" in printed_lines[0]


STEPS = rung("baseline", quick=True, steps=40, warmup_steps=2, val_steps=0, lr=0.05)


@pytest.fixture
def sleeps(tmp_path: Path) -> Path:
    """The script of STEPS, for a fork to execute."""
    script = tmp_path / "steps.py"
    script.write_text((SCRIPTS / "steps.py").read_text())
    return script


def test_runs_that_take_turns_are_one_job_and_one_can_be_cancelled(
    sleeps: Path, runs_root: Path
) -> None:
    configs = [STEPS, replace(STEPS, rung="slower", lr=0.1), replace(STEPS, rung="long", steps=999)]
    runs_in_turns = jobs.launch_all(sleeps, configs, turns=True, site="slurm")
    assert len({run.launched["job_id"] for run in runs_in_turns}) == 1
    fast, slow, long = runs_in_turns
    eventually(lambda: len(long.steps) > 6, "turns are taken")
    jobs.cancel(long)
    assert [over(run).status for run in runs_in_turns] == ["ok", "ok", "cancelled"]
    assert ratio(slow, fast).turns >= 8
    eventually(lambda: state(fast) == "COMPLETED", "Slurm says so too")


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


DYING = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_every_bad_end_is_recorded_and_accounted(
    tmp_path: Path, runs_root: Path, user_sites: Path
) -> None:
    """A script that raises, a time limit, a rank that dies, and `scancel` without the course."""
    user_sites.write_text("[slurm]\ngpus_per_node = 1\n")
    raising = launch("raises.py", site="slurm")
    late = launch("holds.py", site="slurm", time_min=0.05)
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    dying = over(jobs.launch(script, CONFIG, site="slurm", gpus=2))  # a rank on each node
    assert dying.status == "lost" and "killed by SIGKILL" in dying.record.error
    run = launch_running("holds.py", site="slurm", config=replace(CONFIG, seed=1))
    slurm_says("scancel", run.launched["job_id"])
    assert over(run).status == "cancelled" and "Slurm: CANCELLED" in run.record.error
    assert over(raising).status == "failed" and "the missing label" in raising.record.error
    assert over(late).status == "timeout", jobs.explain(late)
    eventually(lambda: state(raising) == state(late) == "FAILED", "Slurm says so too")
    expect_no_process(runs_root, timeout_s=60)  # the dead rank's partner is ended too


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


def test_accounting_is_away_when_a_job_ends(runs_root: Path, slurm: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    own_slurm.programs(slurm)["slurmdbd"].kill()
    slurm_says("scancel", run.launched["job_id"])
    eventually(lambda: not slurm_says("squeue", "-h"), "the job is over")
    assert jobs.refresh(run) in ("queued", "running") and run.record is None
    control.up()
    assert over(run).status == "cancelled"


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


def test_a_node_goes_down_under_a_run(runs_root: Path, user_sites: Path, slurm: Path) -> None:
    user_sites.write_text("[slurm]\nsbatch = ['no-requeue']\n")
    run = launch_running("holds.py", site="slurm")
    node = slurm_says("squeue", "-h", "-j", run.launched["job_id"], "-o", "%N")
    for process in [own_slurm.programs(slurm)[node], *control._strays(slurm)]:
        process.kill()  # as by a power cut: the node says nothing more
    assert over(run).status == "lost"
    assert "Slurm: NODE_FAIL" in run.record.error
    assert state(run) == "NODE_FAIL"
    assert control.up()["nodes"] == "2 of 2 ready"  # the node comes back, and takes jobs


@pytest.mark.parametrize(
    "settings, said",
    [
        ('partition = "moon"', "no partition 'moon' here: choose one of gpu, urgent"),
        ('partition = "urgent"\ntime_min = 600', "time_min=600 is too long.*: at most 118"),
        ('constraint = "h100"', "Slurm refused the job: .*Invalid feature"),
    ],
)
def test_what_slurm_cannot_run_leaves_no_run(
    runs_root: Path, user_sites: Path, settings: str, said: str
) -> None:
    user_sites.write_text(f"[slurm]\n{settings}\n")
    with pytest.raises(ValueError, match=said):
        launch("ok_light.py", site="slurm")
    assert runs.all_runs() == []
