"""The processes of `course.idr_pytools.batch`'s jobs: the runner of each, and `srun` in its script.

A job waits for its turn: for the jobs before it in its folder, and for the lock that the course's
own runs take too, since two at once would spoil each other's times.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from filelock import FileLock, Timeout

from course.idr_pytools.batch import GRACE_S, JOB_VARIABLE, POLL_S, RUNNER, LocalJob, all_jobs
from course.jobs.tickets import machine_lock

WAIT_S = 0.3  # between two looks of a job whose turn has not come
HOST = "localhost"  # as the one node: it resolves on every machine


def run(job: LocalJob) -> None:
    """Run a job's script once its turn has come, and note how it ended."""
    ending, lock = _asked_to_end(), machine_lock()
    state = "FAILED"
    try:
        state = _run_script(job, ending) if _take_turn(job, lock, ending) else "CANCELLED"
    finally:
        job.end_processes(GRACE_S if ending.is_set() or state == "TIMEOUT" else 0)
        job.note("ended.json", state=state)
        lock.release()


def srun(command: list[str]) -> int:
    """Start the command on every task and wait for them; one that fails ends the others.

    Returns:
        The exit code for the script: 0, or that of the task that failed first.
    """
    if not command or command[0].startswith("-"):
        print(f"srun: it takes a command and no options here: {command}", file=sys.stderr)
        return 2
    ending, tasks = _asked_to_end(), []
    try:
        for rank in range(int(os.environ["SLURM_NTASKS"])):
            env = os.environ | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            tasks.append(subprocess.Popen(command, env=env, start_new_session=True))
        while None in [task.poll() for task in tasks] and not ending.is_set():
            if any(task.returncode for task in tasks):
                break
            ending.wait(POLL_S / 2)
        return _verdict(tasks, ending)
    except OSError as error:
        print(f"srun: cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        _end_tasks(tasks)


def _verdict(tasks: list[subprocess.Popen], ending: threading.Event) -> int:
    for rank, task in enumerate(tasks):
        if code := task.returncode:
            told = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            others = ": the others are ended" if len(tasks) > 1 else ""
            print(f"srun: task {rank} failed with {told}{others}", file=sys.stderr)
            return code if code > 0 else 128 - code
    return 128 + signal.SIGTERM if ending.is_set() else 0


def _end_tasks(tasks: list[subprocess.Popen]) -> None:
    """End the tasks that still run, each with what it started."""
    deadline = time.monotonic() + GRACE_S / 2
    for number in (signal.SIGTERM, signal.SIGKILL):
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, number)
        while None in [task.poll() for task in tasks] and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
    for task in tasks:
        task.wait()


def _take_turn(job: LocalJob, lock: FileLock, ending: threading.Event) -> bool:
    while not ending.is_set():
        before = [
            other for other in all_jobs(job.folder.parent) if int(other.job_id) < int(job.job_id)
        ]
        if all(other.is_over() for other in before):
            try:
                lock.acquire(timeout=WAIT_S)
                return True
            except Timeout:  # a run of the course computes, or a job of another folder
                continue
        ending.wait(WAIT_S)
    return False


def _run_script(job: LocalJob, ending: threading.Event) -> str:
    asked, folder = job.asked, str(job.folder)
    log = asked["log"]
    with open(f"{log}.out", "ab") as out, open(f"{log}.err", "ab") as err:
        job.note("started.json")
        script = subprocess.Popen(
            ["bash", f"{folder}/script.sh"],
            env=_variables(job),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        state = _watch(script, time.monotonic() + asked["limit_s"], ending)
        if state in ("TIMEOUT", "CANCELLED"):
            why = "its time was over" if state == "TIMEOUT" else "it was cancelled"
            err.write(f"course: job {job.job_id} is ended: {why}\n".encode())
    return state


def _watch(script: subprocess.Popen, deadline: float, ending: threading.Event) -> str:
    while (code := script.poll()) is None:
        if ending.wait(POLL_S):
            return "CANCELLED"
        if time.monotonic() > deadline:
            return "TIMEOUT"
    return "FAILED" if code else "COMPLETED"


def _variables(job: LocalJob) -> dict[str, str]:
    """What Slurm would set for the job, and `srun` as a function of bash."""
    asked = job.asked
    tasks, number = str(asked["tasks"]), job.job_id
    numbers = ",".join(map(str, range(asked["gpus"])))
    slurm = {
        "JOB_ID": number,
        "JOBID": number,
        "JOB_NAME": asked["name"],
        "SUBMIT_DIR": os.getcwd(),
        "NTASKS": tasks,
        "NPROCS": tasks,
        "NTASKS_PER_NODE": tasks,
        "TASKS_PER_NODE": tasks,
        "STEP_NUM_TASKS": tasks,
        "STEP_TASKS_PER_NODE": tasks,
        "NNODES": "1",
        "JOB_NUM_NODES": "1",
        "STEP_NUM_NODES": "1",
        "NODEID": "0",
        "STEP_ID": "0",
        "STEPID": "0",
        "JOB_NODELIST": HOST,
        "NODELIST": HOST,
        "STEP_NODELIST": HOST,
        "SUBMIT_HOST": HOST,
        "LAUNCH_NODE_IPADDR": "127.0.0.1",
        "CPUS_PER_TASK": str(asked["cpus"]),
        "CPUS_ON_NODE": str(asked["cpus"] * asked["tasks"]),
        "GPUS_ON_NODE": str(asked["gpus"]),
        "JOB_GPUS": numbers,
        "STEP_GPUS": numbers,
    }
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    found = kept | {f"SLURM_{key}": value for key, value in slurm.items()}
    found |= {
        "SLURMD_NODENAME": HOST,
        JOB_VARIABLE: str(job.folder),
        "BASH_FUNC_srun%%": f'() {{ {shlex.join(RUNNER)} srun "$@"; }}',
    }
    if asked["tasks"] > 1:  # or each would start a thread for every core
        threads = max(1, (os.cpu_count() or 1) // asked["tasks"])
        found.setdefault("OMP_NUM_THREADS", str(threads))
    if asked["devices"] > asked["gpus"]:  # every task sees the job's GPUs, as on a node of Slurm
        seen = kept.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own = seen if len(seen) >= asked["gpus"] and seen[0] else numbers.split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(own[: asked["gpus"]])
    return found


def _asked_to_end() -> threading.Event:
    """Set by SIGTERM, which so cannot fall between the start of a process and its being known."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    return ending


def main() -> None:
    """`run FOLDER` runs a job; `srun COMMAND …` is what its script calls."""
    what, *words = sys.argv[1:]
    if what == "srun":
        sys.exit(srun(words))
    run(LocalJob(Path(words[0])))


if __name__ == "__main__":
    main()
