"""The launcher's side of warm starts: asks a server to fork the controller of a job.

There is a server for each user and environment of processes. It is started beside the first job,
and forks those that come after it. Whatever is uncommon is done the cold way, with new processes:
another system than Linux, COURSE_WARM=0, a server that does not answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from course.jobs.private import user_folder
from course.jobs.warm.start import early_variables

SOURCE = Path(__file__).resolve().parents[2]  # the course
ANSWER_S = 1.0  # so long a launch waits for the server; it has nothing else to do
KERNEL = "ipykernel_launcher"  # the module as which Jupyter starts one
OF_KERNELS = "-kernels"  # behind the name of a server: that of its server for kernels alone
# Not by -P, which its forks would inherit: IPython then leaves a notebook's folder off the path.
SERVER = (
    f"import sys; sys.path[0] = {str(SOURCE.parent)!r}  # in place of a job's working directory\n"
    "from course.jobs.warm.server import main; main()"
)
# A Python ignores these as it starts. That a library handles them in this process (as LLVM does,
# once it has compiled something) is not passed on.
IGNORED_ANYHOW = (signal.SIGPIPE, signal.SIGXFSZ)
_started: list[subprocess.Popen] = []  # by this process; those that are over are reaped


def is_wanted() -> bool:
    """May this process ask a server? COURSE_WARM=0 says no."""
    path = [Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return (
        sys.platform == "linux"
        and os.environ.get("COURSE_WARM", "1") != "0"
        and all(each.is_absolute() for each in path)  # the server lies in no folder of anybody's
    )


def name() -> str:
    """The name of the server that suits this process: what its forks take over from it."""
    wanted = ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapEff")
    status = Path("/proc/self/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in status if line.startswith("SigIgn"))
    limits = [
        resource.getrlimit(getattr(resource, each))
        for each in sorted(dir(resource))
        if each.startswith("RLIMIT_")
    ]
    taken_over = [
        sys.executable,
        str(SOURCE),
        early_variables(os.environ),
        limits,
        [line for line in status if line.startswith(wanted)],
        int(ignored, 16) & ~sum(1 << each - 1 for each in IGNORED_ANYHOW),
        Path("/proc/self/cgroup").read_text(),
        sorted(os.sched_getaffinity(0)),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    ]
    return _digest(taken_over)


def signature() -> str:
    """What the server has imported: the course's source, and PyTorch's version."""
    files = []
    for folder, inside, names in os.walk(SOURCE):
        inside[:] = {*inside} - {"__pycache__"}
        files += [Path(folder, each) for each in names if each.endswith(".py")]
    files.sort()
    for package in ("torch", "torchvision"):
        found = find_spec(package)
        if found and found.origin:
            files.append(Path(found.origin).with_name("version.py"))
    return _digest([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files])


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]


@contextmanager
def place() -> Iterator[str]:
    """The folder of this user's servers, open, as a path that is short enough for a socket's.

    Raises:
        OSError: it cannot be had, or others may write to it.
    """
    descriptor = os.open(user_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def start_controller(
    folder: Path, tasks: int, env: dict[str, str], handles: Sequence[int]
) -> list[float] | None:
    """Let the server fork the first process of a job: that process's identity.

    Args:
        handles: descriptors of the job's ticket and of locks to wait for, for that process.

    Returns:
        None where nothing was started: it is to be done the cold way.
    """
    if not is_wanted():
        return None
    try:
        job = {"folder": str(folder), "tasks": tasks, "env": env}
        job |= {"cwd": os.getcwd(), "user": user()}
        with connected(name()) as server:
            answer = ask(server, {"job": job, "signature": signature()})
            controller = answer.get("controller")
            if controller:
                socket.send_fds(
                    server, [b"go"], handles
                )  # from here on it is the server's: no way leads back
            return controller
    except (OSError, ValueError):
        return None


def user() -> list[float]:
    """Who launches: the head of this session, a shell or a Jupyter kernel; else this process."""
    from course.jobs.processes import identity

    try:
        return identity(os.getsid(0))
    except (psutil.Error, ValueError):  # it is gone, or of another container
        return identity(os.getpid())


def stop_all() -> None:
    """End the servers of this user that TMPDIR leads to, and those on their way; jobs go on."""
    for process in _started:
        process.terminate()
        process.wait()
    _started.clear()
    with suppress(OSError), place() as folder:
        for path in sorted(Path(folder).glob("*.lock")):
            with path.open() as lock, suppress(ValueError, ProcessLookupError):
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:  # the server holds it as long as it lives
                    os.kill(int(lock.read()), signal.SIGTERM)


@contextmanager
def connected(of: str) -> Iterator[socket.socket]:
    """A connection to the server of that name.

    Raises:
        OSError: there is none.
    """
    with place() as folder, socket.socket(socket.AF_UNIX) as server:
        server.settimeout(ANSWER_S)
        server.connect(f"{folder}/{of}.socket")
        yield server


def ask(server: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    """What the server answers.

    Raises:
        OSError, ValueError: nothing, or too late.
    """
    server.sendall(json.dumps(request).encode() + b"\n")
    with server.makefile("rb") as answers:
        return json.loads(answers.readline())


def _serves(of: str) -> bool:
    """Is there a server of that name, or one that is about to be? It locks a file meanwhile."""
    with suppress(OSError), place() as folder, open(f"{folder}/{of}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start_server() -> None:
    """Start a server for the launches to come, which ends at once where there is one."""
    if not is_wanted() or _serves(name()):
        return
    from course.jobs.processes import job_environment

    ours = ("COURSE_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {key: value for key, value in job_environment().items() if not key.startswith(ours)}
    env["OPENBLAS_NUM_THREADS"] = "1"  # numpy's library starts its threads when it is loaded
    command = [sys.executable, "-u", "-c", SERVER, name(), signature(), json.dumps(user())]
    with suppress(OSError):
        _started[:] = [each for each in _started if each.poll() is None]
        quiet = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        _started.append(
            subprocess.Popen(command, cwd="/", env=env, start_new_session=True, **quiet)
        )
