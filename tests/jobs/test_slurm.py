"""Runs on a real Slurm: how they start, how they end, and the record of it."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import psutil
import pytest
from ipywidgets import HTML
from job_helpers import (
    CONFIG,
    SCRIPTS,
    SHORT,
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
    steps_script,
)

import slurm_box
from course.config import rung
from course.jobs import launch as jobs
from course.jobs import plan, queue, slurm_partitions
from course.jobs import slurm as course_slurm
from course.runs import run as runs
from course.runs.ratio import ratio
from course.runs.run import Run
from course.widgets.queue import LiveQueue
from labs import search as search
from labs.search.studies import Search
from labs.search.trials import FOLDER
from slurm_box import control
from slurm_box.cluster import programs
from slurm_box.tests.fixtures import DEADLINE_S

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


def state(run: Run) -> str:
    number = run.launched["job_id"]
    return slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State").partition(" ")[0]


def test_a_training_run_is_recorded_as_on_this_machine(
    tmp_path: Path, runs_root: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_RUNS", str(runs_root / "my runs; exit 1"))  # quoted in the script
    script = narrow_solution(tmp_path)
    run = jobs.launch(script, TINY, site="slurm").wait()
    assert (run.status, run.record.site, run.record.job_id) == (
        "ok",
        "slurm",
        run.launched["job_id"],
    )
    assert run.record.images_per_s > 0 and len(run.steps) == 3
    assert not planted.exists()  # no task imports from the folder that it was launched in
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
    outer = ("env", "OUTER=1", "PMI_RANK=0", "SLURM_HINT=nomultithread", "SBATCH_EXPORT=NONE")
    outer += ("SBATCH_PARTITION=no_such_partition", "SBATCH_TIMELIMIT=1", "SQUEUE_PARTITION=none")
    printed_lines = []
    # Outside a step; then in a step with one core of a node, not the core of the run's job.
    for step in ([], ["srun", "-n1", "-wnode2"]):
        slurm_says(*outer, *step, *begin)
        run = over(runs.all_runs()[-1])
        assert run.status == "ok", run.explain()
        printed_lines += [line for line in printed(run).splitlines() if line.startswith("cores")]
    assert len(printed_lines) == 2 and len({*printed_lines}) == 1
    assert f"}} ['OUTER'] {slurm}/slurm.conf" in printed_lines[0]


def test_a_site_names_the_python_of_its_jobs(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a container, where Python has a different path, or is not a path at all."""
    path, script = tmp_path / "sites.toml", tmp_path / "inside.py"
    path.write_text(
        f"""[inside]\nexecutor = "slurm"\npython = 'env INSIDE=yes "{sys.executable}"'"""
    )
    monkeypatch.setenv("COURSE_SITES", str(path))
    script.write_text("import os\nprint('inside:', os.environ['INSIDE'])\n")
    run = over(jobs.launch(script, CONFIG, site="inside"))
    assert run.status == "ok" and "inside: yes" in printed(run), run.explain()


STEPS = rung("baseline", quick=True, steps=40, warmup_steps=2, val_steps=0, lr=0.05)


@pytest.fixture
def sleeps(tmp_path: Path) -> Path:
    """Write STEPS as a script for a fork to execute."""
    script = tmp_path / "steps.py"
    script.write_text((SCRIPTS / "steps.py").read_text())
    return script


def test_runs_that_take_turns_are_one_job_and_one_can_be_cancelled(
    sleeps: Path, runs_root: Path
) -> None:
    configs = [STEPS, replace(STEPS, rung="long", steps=999)]
    short, long = jobs.launch_all(sleeps, configs, turns=True, site="slurm")
    assert short.launched["job_id"] == long.launched["job_id"]
    eventually(lambda: len(long.steps) > 6, "turns are taken")
    long.cancel()
    assert [over(run).status for run in (short, long)] == ["ok", "cancelled"]
    assert short.record.turns > 0
    eventually(lambda: state(short) == "COMPLETED", "Slurm says so too")


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
    assert run.status == "ok", run.explain()
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
    """A script that raises, a time limit, dead ranks and supervisors, and a plain `scancel`."""
    user_sites.write_text("[slurm]\ngpus_per_node = 1\n")
    raising = launch("raises.py", site="slurm")
    late = launch("holds.py", site="slurm", time_min=0.05)
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    leaving = steps_script(tmp_path, inside="run.rank and os._exit(0)")
    left = over(jobs.launch(leaving, SHORT, site="slurm", gpus=2))
    assert left.status == "failed"
    assert "rank 1: the script ended in step 0 of 8 (exit code 0)" in left.record.error
    dying = over(jobs.launch(script, CONFIG, site="slurm", gpus=2))  # a rank on each node
    assert dying.status == "lost" and "killed by SIGKILL" in dying.record.error
    run = launch_running("holds.py", site="slurm", config=replace(CONFIG, seed=1))
    slurm_says("scancel", run.launched["job_id"])
    assert over(run).status == "cancelled" and "Slurm: CANCELLED" in run.record.error
    killed = launch_running("holds.py", site="slurm", config=replace(CONFIG, seed=2))
    os.kill(killed.started["supervisor"][0], signal.SIGKILL)
    assert over(killed).status == "lost" and "processes were killed" in killed.record.error
    assert "Fix the cause" not in killed.explain()
    assert over(raising).status == "failed" and "the missing label" in raising.record.error
    assert over(late).status == "timeout", late.explain()
    eventually(lambda: state(raising) == state(late) == "FAILED", "Slurm says so too")
    expect_no_process(runs_root, timeout_s=60)  # the dead rank's partner is ended too


def test_cancelling_a_running_and_a_waiting_one(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text(SITES)
    running = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm", gpus=8)
    group = jobs.launch_all(
        SCRIPTS / "steps.py", [STEPS, replace(STEPS, seed=1)], turns=True, site="slurm"
    )
    assert [jobs.refresh(running), jobs.refresh(waiting)] == ["running", "queued"]
    jobs.cancel(group)
    for run in (waiting, running):
        run.cancel()
    cancelled = [running, waiting, *group]
    assert {run.status for run in cancelled} == {"cancelled"}
    eventually(lambda: {*map(state, cancelled)} == {"CANCELLED"}, "Slurm says so too")
    assert not waiting.started and not group[0].started
    expect_no_process(runs_root)


def test_accounting_is_away_when_a_job_ends(runs_root: Path, slurm: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    programs(slurm)["slurmdbd"].kill()
    slurm_says("scancel", run.launched["job_id"])
    eventually(lambda: not slurm_says("squeue", "-h"), "the job is over")
    assert jobs.refresh(run) in ("queued", "running") and run.record is None
    slurm_box.up()
    assert over(run).status == "cancelled"


def test_logs_that_a_node_cannot_write_are_the_first_suspect(
    runs_root: Path, user_sites: Path
) -> None:
    user_sites.write_text(SITES)
    holding = launch_running("holds.py", site="whole", gpus=2)
    run = launch("ok_light.py", site="slurm")
    (run.folder / "logs").rename(run.folder / "elsewhere")  # as if a node lacked the disk
    release(holding)
    assert over(run).status == "failed"
    assert "No log was written: does the node see" in run.record.error


def test_the_cluster_is_ended_under_a_run(runs_root: Path, user_sites: Path, slurm: Path) -> None:
    user_sites.write_text(SITES)
    running = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm")
    slurm_box.down()
    expect_no_process(runs_root)
    assert [over(run).status for run in (running, waiting)] == ["lost", "lost"]
    assert "course slurm up starts it" in waiting.record.error
    slurm_box.up()
    assert slurm_says("squeue", "-h") == ""  # nothing continues by itself
    assert over(launch("ok_light.py", site="slurm")).status == "ok"


def test_a_node_goes_down_under_a_run(runs_root: Path, user_sites: Path, slurm: Path) -> None:
    user_sites.write_text("[slurm]\nsbatch = ['no-requeue']\n")
    run = launch_running("holds.py", site="slurm")
    node = slurm_says("squeue", "-h", "-j", run.launched["job_id"], "-o", "%N")
    for process in [programs(slurm)[node], *control._strays(slurm)]:
        process.kill()  # as in a power cut: the node no longer answers
    assert over(run).status == "lost"
    assert "Slurm: NODE_FAIL" in run.record.error
    assert state(run) == "NODE_FAIL"
    assert slurm_box.up()["nodes"] == "2 of 2 ready"  # the node comes back, and takes jobs


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


# Slow enough to interrupt between two steps, and with the same number of threads everywhere.
SLOW = """
from time import sleep
torch.set_num_threads(1)
in_no_time = Meter.lap
Meter.lap = lambda *phase, **loss: sleep(0.05 * bool(loss)) or in_no_time(*phase, **loss)
"""
RESTARTED = rung(
    "restarted",
    quick=True,
    model="resnet18",
    data="synthetic",
    image_px=32,
    batch_size=4,
    precision="fp32",
    schedule="cosine",
    mix="mixup",
    deterministic=True,
    steps=100,
    warmup_steps=4,
    val_steps=0,
    budget_s=0.0,
    save_every=30,
    sigkill_step=75,  # during the checkpoint after step 90, unless another is saved before
)


def start_requeued(run: Run, cluster: Path) -> bool:
    """Let a requeued job start at once, for which Slurm would wait for two minutes.

    Returns:
        Whether it may start. While a process of its previous attempt is left, it may not: Slurm
        would take that attempt's exit code for the new one's.
    """
    if control._strays(cluster):
        return False
    number = run.launched["job_id"]
    answer = slurm_partitions.ask("scontrol", "update", f"jobid={number}", "starttime=now")
    return answer is not None and not answer.returncode


def test_a_preempted_training_goes_on_to_the_bit(
    tmp_path: Path, runs_root: Path, user_sites: Path, small_set: Path, slurm: Path
) -> None:
    """Slurm's SIGTERM reaches its DataLoader workers, too."""
    user_sites.write_text(SITES)
    script = narrow_solution(tmp_path, SLOW, "train_restarted.py")
    config = replace(RESTARTED, data="imagenet", data_root=str(small_set), workers=2)
    run = jobs.launch(script, config, site="slurm")
    whole = jobs.launch(script, replace(config, save_every=0, sigkill_step=0))
    eventually(lambda: jobs.steps_done(run) > 5, "it trains")
    urgent = over(launch("ok_light.py", site="urgent", gpus=2))
    assert urgent.status == "ok", urgent.explain()
    saved = [*(run.folder / "checkpoints").iterdir()]
    eventually(lambda: jobs.refresh(run) == "queued", "Slurm has put it back")
    eventually(lambda: start_requeued(run, slurm), "its first attempt has left the node")
    assert over(run).status == "ok", run.explain()
    # When SIGTERM came, it finished its step and saved.
    last = max(int(path.stem.removeprefix("step-")) for path in saved)
    assert 5 < last < 75
    seen = run.record.evidence
    assert [each["how"] for each in seen.interrupted] == ["SIGKILL"]
    # The checkpoint during which it was killed was never used.
    assert (
        seen.began_at == max(last, 60)
        and {"name": ".draft", "step": None, "state": "unreadable"} in seen.found
    )
    assert "asked to end" in run.tail()
    assert over(whole).status == "ok", whole.explain()
    assert run.steps["loss"].tolist() == whole.steps["loss"].tolist()
    assert seen.weights_sum == whole.record.evidence.weights_sum


def test_a_training_longer_than_its_time_is_requeued_until_it_is_complete(
    tmp_path: Path, runs_root: Path, slurm: Path
) -> None:
    # Each attempt must train at least one step, however slowly it starts on this machine.
    began = time.monotonic()
    assert over(jobs.launch(narrow_solution(tmp_path), TINY, site="slurm", gpus=2)).status == "ok"
    limit_s = 3 * (time.monotonic() - began)
    script = narrow_solution(tmp_path, SLOW.replace("0.05", str(limit_s / 20)))
    config = replace(TINY, steps=30, save_every=1000, deterministic=True)
    run = jobs.launch(script, config, site="slurm", time_min=limit_s / 60, gpus=2)
    states = set()

    def is_over() -> bool:
        states.add(state := jobs.refresh(run))
        if state == "queued":
            start_requeued(run, slurm)
        return run.record is not None

    eventually(is_over, "it is complete", timeout_s=DEADLINE_S + 4 * limit_s)
    assert run.status == "ok", run.explain()
    assert "timeout" not in states
    assert run.steps["step"].tolist() == [*range(30)]
    assert "continues from the checkpoint after step" in printed(run)


def test_without_any_progress_a_training_is_not_requeued(tmp_path: Path, runs_root: Path) -> None:
    script = steps_script(tmp_path, before="import time; time.sleep(1000)")
    config = replace(SHORT, save_every=2)
    run = over(jobs.launch(script, config, site="slurm", time_min=0.2))
    assert run.status == "timeout"
    assert "Launch it again: it continues from its last checkpoint" in run.record.error


RATES = [0.01 * 1.6**power for power in range(12)]
KILLED, CANCELLED = 3, 5  # the trial whose job is killed, and one that is cancelled


def test_a_search_runs_trials_as_jobs_and_goes_on_without_those_that_end(runs_root: Path) -> None:
    def conduct() -> Search:
        config = rung("baseline", quick=True)
        script = SCRIPTS / "trial_light.py"
        return search.search(
            "grid", {"lr": RATES}, config, script=script, site="slurm", workers=5, name="many"
        )

    study = runs_root / FOLDER / "many"
    study.mkdir(parents=True)
    (study / "hold").write_text(f"{KILLED} {CANCELLED}")
    with ThreadPoolExecutor() as pool:
        conducted = pool.submit(conduct)
        eventually(lambda: _started(KILLED) and _started(CANCELLED), "both trials run", 60)
        _kill(int(_started(KILLED).started["supervisor"][0]))
        jobs.cancel([_started(CANCELLED)])
        done = conducted.result(timeout=120)
    table = done.table().set_index("trial")
    complete = table[table["state"] == "complete"]
    ended = table["state"].drop(complete.index)
    assert ended.to_dict() == {KILLED: "lost", CANCELLED: "cancelled"}
    left = [rate for number, rate in enumerate(RATES) if number not in ended]
    assert complete["lr"].tolist() == pytest.approx(left)  # all others, each once
    again = conduct()  # finds all of it done
    assert again.folder == done.folder and len(again.runs) == len(RATES)


def _started(number: int) -> Run | None:
    """Return a trial's run if it has started."""
    found = [run for run in runs.all_runs() if run.launched["trial"]["number"] == number]
    return found[0] if found and found[0].started else None


def _kill(supervisor: int) -> None:
    """Kill a supervisor, and what it started, as a cluster's cgroups would: it cannot report."""
    started = psutil.Process(supervisor).children(recursive=True)
    for process in (psutil.Process(supervisor), *started):
        process.kill()


def test_two_nodes_of_two_tasks_train_together_in_turns_with_one_rank(
    tmp_path: Path, runs_root: Path, user_sites: Path, small_set: Path
) -> None:
    user_sites.write_text("[slurm]\ngpus_per_node = 2\n")
    script = narrow_solution(tmp_path)
    images = {"data": "imagenet", "data_root": str(small_set), "val_images": 15, "val_steps": 4}
    config = replace(TINY, **images, batch_size=8, steps=4, collective_timeout_s=30)
    alone = over(jobs.launch(script, config, site="slurm"))
    run = over(jobs.launch(script, config, site="slurm", gpus=4, against=alone))
    assert run.status == "ok", run.explain()
    assert ratio(run, alone).turns == run.record.turns > 0
    number = run.launched["job_id"]
    evidence = [run.evidence(rank) for rank in range(4)]
    assert [e.world_size for e in evidence] == [4] * 4
    assert [e.share for e in evidence] == [2] * 4
    assert len({e.weights_sum for e in evidence}) == 1
    assert sorted(sum((e.taken[0] for e in evidence), [])) == list(range(32))
    assert run.record.val_images == 15
    words = ("sacct", "-X", "-n", "-P", "-j", number, "-o", "State,NNodes")
    eventually(lambda: slurm_says(*words) == "COMPLETED|2", "Slurm says so too")


def test_ranks_load_only_objects_of_ranks_of_their_job(runs_root: Path, user_sites: Path) -> None:
    # Their secret is not a variable: a site may let jobs begin without the user's.
    settings = 'sbatch = ["export=NONE"]\nsetup = ["export SLURM_EXPORT_ENV=ALL"]\n'
    user_sites.write_text(f"[slurm]\ngpus_per_node = 2\n{settings}")
    run = over(launch("plants_object.py", site="slurm", gpus=4))
    assert (run.folder / runs.OBJECT_KEY).stat().st_mode & 0o077 == 0
    texts = "".join(path.read_text() for path in run.logs)
    assert texts.count("rank 0 has sent 0") == 4
    assert "not from a rank of this run: someone took its place" in run.explain()


def reasons() -> dict[str, str]:
    """Return each run's place or why it waits, by the run's name."""
    return queue.table().set_index("name")["reason"].to_dict()


def test_running_and_waiting_with_their_reasons(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text(SITES)
    running = launch_running("holds.py", site="whole", gpus=2)
    waiting = launch("ok_light.py", site="slurm", gpus=4, config=replace(CONFIG, seed=1))
    last = launch("ok_light.py", site="slurm", gpus=2, config=replace(CONFIG, seed=2))
    eventually(lambda: "Resources" in reasons()[waiting.name], "Slurm looked at it", 30)
    eventually(lambda: "Priority" in reasons()[last.name], "and at the other", 60)
    table = queue.table()
    assert list(table.columns) == list(queue.COLUMNS)
    assert list(table["name"]) == [running.name, waiting.name, last.name]
    assert list(table["job"]) == [run.launched["job_id"] for run in (running, waiting, last)]
    assert list(table["state"]) == ["running", "pending", "pending"]
    assert list(table["nodes"]) == [2, 1, 1]
    assert list(table["gpus"]) == [2, 4, 2]
    assert table["reason"][0] == "on node[1-2]"
    assert table["reason"][1] == "Resources: it waits for nodes or GPUs to become free"
    assert table["elapsed_s"][0] > 0 and list(table["elapsed_s"][1:]) == [0, 0]


def test_without_the_controller_a_run_counts_as_running_and_cannot_be_cancelled(
    runs_root: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch_running("holds.py", site="slurm")
    monkeypatch.setattr(course_slurm, "CANCEL_S", 0)
    live = LiveQueue(queue.table)

    def text() -> str:
        return "\n".join(part.value for part in live.box.children if isinstance(part, HTML))

    live.refresh()
    programs(slurm)["slurmctld"].send_signal(signal.SIGTERM)
    eventually(lambda: "slurmctld" not in programs(slurm), "it is gone")
    live.refresh()  # squeue's last answer is used for a while
    time.sleep(2)
    assert live.refresh()
    assert "Slurm does not answer just now; the next try follows." in text()
    assert live.table.set_index("name").loc[run.name, "state"] == "running"
    assert pd.isna(live.table["nodes"][0])
    with pytest.raises(jobs.JobError, match="is not cancelled: Slurm does not answer"):
        run.cancel()
    assert jobs.refresh(run) == "running" and run.record is None
    slurm_box.up()
    eventually(lambda: live.refresh() and "does not answer" not in text(), "back", 30)
    release(run)
    assert over(run).status == "ok", run.explain()
    eventually(lambda: not live.refresh(), "the queue is empty", 20)
    assert f"{run.name} has ended: ok." in text()
