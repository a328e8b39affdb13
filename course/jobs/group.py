"""Set up runs that take turns in one job: conductor, address, and a check of the memory."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psutil

from course.config import GIB, Config
from course.jobs.processes import POLL_S
from course.runs.files import write_atomically
from course.runs.run import Run
from course.training.ranks import store

if TYPE_CHECKING:
    from course.jobs.conductor import Conductor

# Below 32,768: from there on Linux assigns ports to connections, so one might be taken.
PORTS = range(22_000, 32_000)
LIBRARIES_GIB = 0.8  # of a training process on a CPU, before its first tensor
WORKER_GIB = 0.3  # of a DataLoader worker, which shares its libraries with the training process
CONTEXT_GIB = 1.0  # of a process on a GPU: CUDA's context, and work spaces of its libraries
# Upper bound for an image of 224 px in any network: ResNet-152 in fp32 takes 0.19.
IMAGE_GIB = 0.2


@dataclass(frozen=True)
class Task:
    """A task of a job: one rank of each of its runs."""

    rank: int
    count: int  # of tasks in the job
    local_rank: int
    job_id: str
    nodes: int = 1


def slurm_task() -> Task:
    """Return the task of Slurm that this process belongs to."""
    from submitit import JobEnvironment

    job = JobEnvironment()
    return Task(job.global_rank, job.num_tasks, job.local_rank, job.job_id, job.num_nodes)


def address_file(run: Run) -> Path:
    """Return the file with the conductor's address, on the disk that all tasks share."""
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    return run.job.folder / f"turns-{attempt}.json"


def first_node(run: Run) -> str:
    """Return the address at which tasks reach the job's first node."""
    if run.executor == "slurm":
        # From there srun started the tasks.
        return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return "127.0.0.1"


def first_port(job_id: str) -> int:
    """Return the port where the ranks of a Slurm job's first run meet; all tasks derive it."""
    return Random(job_id).choice(PORTS)


def store_file(run: Run, start: int) -> Path:
    """Return the file with the port of a local run's store, which rank 0 writes.

    Args:
        start: how often each rank's process was started before.
    """
    return run.folder / f"store-{start}.port"


def start_store(run: Run, start: int, context: BaseContext) -> BaseProcess:
    """Start the process that holds the store of a local run's ranks, and write its port to a file.

    PyTorch's own store, in rank 0, would listen to other machines too, on a port that may be taken
    by then. This one listens on loopback, on a port that the system chose, as torchrun's does.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = context.Process(target=store.serve, args=(listener,))
        process.start()
        write_atomically(store_file(run, start), str(listener.getsockname()[1]))
    return process


def start_turns(
    run: Run, tasks: Sequence[Task], context: BaseContext, deadline: float
) -> tuple[bool, Conductor | None]:
    """Decide whether the runs of the job take turns; the supervisor of rank 0 conducts them.

    Args:
        run: the job's first run.
        tasks: those of this supervisor; other supervisors read the decision from a file.
        context: starts processes.
        deadline: when to stop waiting for the decision, in `time.monotonic` seconds.

    Returns:
        Whether they take turns; and the conductor, in the supervisor of rank 0.
    """
    if len(run.together) == 1:
        return False, None
    path = address_file(run)
    if tasks[0].rank > 0:
        while not path.exists():
            given_up = all(each.record for each in run.together)
            if given_up or time.monotonic() > deadline:
                return False, None
            time.sleep(POLL_S)
        return "why_not" not in json.loads(path.read_text()), None
    living = [each for each in run.together if not each.record]
    try:
        refused = refusal(living, context)
        if not refused:
            from course.jobs.conductor import Conductor

            conductor = Conductor(living)
            if len(tasks) < tasks[0].count:
                conductor.listen(first_node(run), path)
            conductor.start()
            return True, conductor
    except Exception as error:  # any error: the runs can run one after another
        refused = f"{type(error).__name__}: {error}"
    with suppress(OSError):  # a full disk: the others give up at their deadline
        write_atomically(path, json.dumps({"why_not": refused}))
    return False, None


def refusal(runs: Sequence[Run], context: BaseContext) -> str:
    """Return why the runs cannot take turns, such as too little memory; "" if they can.

    If a rough upper bound of their memory fits, that suffices. Otherwise `predict` computes each
    peak, which takes seconds.
    """
    if len(runs) < 2:
        return "the others were over before it began"
    free = None
    if any(run.config.device == "auto" for run in runs):  # in a process: a fork cannot inherit NVML
        free = (_in_process(context, _gpu_free_gib) or [None])[0]
    if free == 0:
        return "this site gives each process a GPU of its own"
    where = "the host's memory" if free is None else "the GPU's memory"
    # A GPU has one process of each run; the host's memory has all processes of this node.
    processes = [run for run in runs for _ in range(run.gpus if free is None else 1)]
    fixed = CONTEXT_GIB if free is not None else LIBRARIES_GIB
    free = _host_free_gib(runs) if free is None else free
    if sum(fixed + _at_most_gib(run) for run in processes) <= free:
        return ""
    found = dict(zip([run.folder for run in runs], _in_process(context, partial(_peaks_gib, runs))))
    needed = sum(fixed + found.get(run.folder, math.inf) for run in processes)
    if needed <= free:
        return ""
    return f"together they need about {needed:.0f} GiB of {where}, and {free:.0f} are free"


def _host_free_gib(runs: Sequence[Run]) -> float:
    """Return the free GiB of this machine, container or job, less what DataLoader workers need."""
    free = psutil.virtual_memory().available
    own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    for folder in (Path("/sys/fs/cgroup") / own, Path("/sys/fs/cgroup")):
        with suppress(OSError, ValueError):  # no such group, or "max": no limit
            limit = int((folder / "memory.max").read_text())
            free = min(free, limit - int((folder / "memory.current").read_text()))
    workers = sum(run.config.workers * run.gpus for run in runs)
    return free / GIB - WORKER_GIB * workers


def _peaks_gib(runs: Sequence[Run]) -> list[float]:
    from course.training.memory_prediction import predict
    from course.training.precision import resolve

    return [predict(resolve(_share(run))).peak_gib for run in runs]


def _in_process(context: BaseContext, work: Callable[[], list[float]]) -> list[float]:
    """Return what `work` returns in another process; [] if it fails.

    This process must keep no GPU open.
    """
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=_send, args=(writer, work))
    worker.start()
    writer.close()
    try:
        return reader.recv()
    except EOFError:
        return []
    finally:
        worker.join()


def _send(writer: Connection, work: Callable[[], list[float]]) -> None:
    writer.send(work())


def _share(run: Run) -> Config:
    """Return the config of one of the run's processes, on an accelerator: `predict` needs one."""
    config = run.config
    return replace(config, device="auto", batch_size=config.batch_size // run.gpus)


def _at_most_gib(run: Run) -> float:
    share = _share(run)
    return IMAGE_GIB * share.batch_size * (share.image_px / 224) ** 2


def _gpu_free_gib() -> list[float]:
    """Return the free memory of this task's NVIDIA GPU, without opening it; [] without a GPU.

    0 if the site gives each process its own GPU: then no two runs can share one.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        number = visible[min(local_rank, len(visible) - 1)] or "0"
        if number.isdigit():
            board = pynvml.nvmlDeviceGetHandleByIndex(int(number))
        else:
            board = pynvml.nvmlDeviceGetHandleByUUID(number)
        if pynvml.nvmlDeviceGetComputeMode(board) != pynvml.NVML_COMPUTEMODE_DEFAULT:
            return [0.0]
        return [pynvml.nvmlDeviceGetMemoryInfo(board).free / GIB]
    except pynvml.NVMLError:
        return []
