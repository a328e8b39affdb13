"""Warm starts: a job's processes are forked from one that has imported PyTorch already.

A server, one for each user and environment of processes, has imported what a training script
needs, and waits. It is started beside the first job, and forks the controllers of those that come
after it (`course.warm_server`). Whatever is uncommon is done the cold way, with new processes:
another system than Linux, COURSE_WARM=0, a server that does not answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from course import forks
from course.forks import Forked
from course.fresh import Process

ANSWER_S = 1.0  # so long a launch waits for the server; it has nothing else to do
MODULES = ("torch", "torchvision", "course.models", "course.data.loader", "course.meter",
           "course.precision", "course.profiling", "course.recorder",
           "course.sync_batchnorm", "threadpoolctl")  # fmt: skip
# Variables that libraries read while they are loaded, and not again.
READ_EARLY = ("ATEN_", "CUBLAS", "CUDA_", "CUDNN", "DNNL_", "GLIBC_", "GOMP_", "GOTO_", "KINETO_",
              "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_",
              "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH", "TZ")  # fmt: skip
# Of these names, but read when they are needed, or given to a fork by _set_threads.
READ_LATE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_NCCL_")
SERVER = "from course.warm_server import main; main()"
_servers: list[subprocess.Popen] = []  # those that this process started: Popen reaps them
_prepared: dict[str, Any] = {}


def prepare() -> None:
    """Import what a training script needs; `start_script` then forks. Needs `python -u`.

    No accelerator is touched and no thread started, neither of which a fork would survive.
    """
    variable = "OPENBLAS_NUM_THREADS"  # numpy's library starts its threads when it is loaded
    kept, before = os.environ.get(variable), dict(os.environ)
    os.environ[variable] = "1"
    try:
        for name in MODULES:
            import_module(name)
    finally:
        os.environ.pop(variable)
        if kept is not None:
            os.environ[variable] = kept
    # Python puts a folder of the program's own at first.
    path = sys.path[:] if sys.flags.safe_path else sys.path[1:]
    late = {key: value for key, value in os.environ.items() if before.get(key) != value}
    from course.pages import of_files

    _prepared.update(
        path=path, variables=early_variables(before), set=late, pages=of_files()
    )  # fmt: skip


def is_prepared() -> bool:
    """Does `start_script` fork here?"""
    return bool(_prepared)


def start_script(script: Path, *, cwd: Path, env: dict[str, str]) -> Forked | subprocess.Popen:
    """Start `python -u script` in a session of its own: forked where this process is prepared.

    Raises:
        OSError: no such folder, or no process can be had.
    """
    command = [sys.executable, "-u", str(script)]
    if not _suits(env):
        return subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True)
    body = partial(forks.execute, script, _prepared["path"], before=_finish_imports)
    return forks.fork(body, Process(command, env, cwd, session=True))


def early_variables(env: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The variables that a library has read once it is imported."""
    return {name: value for name, value in sorted(env.items())
            if name.startswith(READ_EARLY) and not name.startswith(READ_LATE)}  # fmt: skip


def _suits(env: dict[str, str]) -> bool:
    """Would what is imported here be the same in a new process with this environment?"""
    if not is_prepared():
        return False
    late = _prepared["set"]  # it may be in `env` by way of this process, or not
    if late | early_variables(env) != late | _prepared["variables"]:
        return False
    asked = [env.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    return all(text.isascii() and text.isdigit() and int(text) > 0 for text in asked)


def _finish_imports() -> None:
    """What imports do in a new process by its own environment."""
    from course import pages

    for key, value in _prepared["set"].items():
        os.environ.setdefault(key, value)
    pages.map_again(_prepared["pages"])
    _set_threads()


def _set_threads() -> None:
    """As many threads as a new process would have, by its own environment and cores."""
    import torch
    from threadpoolctl import ThreadpoolController

    cores = len(os.sched_getaffinity(0))
    asked = int(os.environ.get("OMP_NUM_THREADS", cores))
    for_numpy = int(os.environ.get("OPENBLAS_NUM_THREADS", asked))
    ThreadpoolController().select(internal_api="openblas").limit(limits=min(for_numpy, cores))
    if "OMP_NUM_THREADS" not in os.environ or "MKL_NUM_THREADS" in os.environ:
        return
    most = torch.get_num_threads() if torch.backends.mkl.is_available() else asked  # MKL's limit
    torch.set_num_threads(min(asked, most))


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
    wanted = ("Umask", "SigIgn", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapEff")
    status = Path("/proc/self/status").read_text().splitlines()
    limits = [resource.getrlimit(getattr(resource, each)) for each in sorted(dir(resource))
              if each.startswith("RLIMIT_")]  # fmt: skip
    taken_over = [
        sys.executable, str(Path(__file__).parent), early_variables(os.environ), limits,
        [line for line in status if line.startswith(wanted)], Path("/proc/self/cgroup").read_text(),
        sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    ]  # fmt: skip
    return _digest(taken_over)


def signature() -> str:
    """What the server has imported: the course's source, and PyTorch's version."""
    files = sorted(Path(__file__).parent.glob("**/*.py"))
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
    folder = Path(tempfile.gettempdir()) / f"make-training-fast-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
            raise PermissionError(f"{folder} must be its owner's alone (chmod 700)")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def start_controller(folder: Path, env: dict[str, str]) -> list[float] | None:
    """Let the server fork submitit's controller of a job: that process's identity.

    Returns:
        None where nothing was started: it is to be done the cold way.
    """
    if not is_wanted():
        return None
    try:
        job = {"folder": str(folder), "env": env, "cwd": os.getcwd(), "user": _user()}
        with _connected(name()) as server:
            answer = _ask(server, {"job": job, "signature": signature()})
            controller = answer.get("controller")
            if controller:
                server.sendall(b"go")  # from here on it is the server's: no way leads back
            return controller
    except (OSError, ValueError):
        return None


def _user() -> list[float]:
    """Who launches: the head of this session, a shell or a Jupyter kernel; else this process."""
    from course.local import identity

    try:
        return identity(os.getsid(0))
    except (psutil.Error, ValueError):  # it is gone, or of another container
        return identity(os.getpid())


def stop_all() -> None:
    """End the servers of this user that TMPDIR leads to; their jobs go on."""
    with suppress(OSError), place() as folder:
        for path in sorted(Path(folder).glob("*.socket")):
            with suppress(OSError, ValueError), _connected(path.stem) as server:
                _ask(server, {"end": True})


@contextmanager
def _connected(of: str) -> Iterator[socket.socket]:
    with place() as folder, socket.socket(socket.AF_UNIX) as server:
        server.settimeout(ANSWER_S)
        server.connect(f"{folder}/{of}.socket")
        yield server


def _ask(server: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    server.sendall(json.dumps(request).encode() + b"\n")
    with server.makefile("rb") as answers:
        return json.loads(answers.readline())


def start_server() -> None:
    """Start a server for the launches to come, which ends at once where there is one."""
    if not is_wanted():
        return
    ours = ("COURSE_", "SUBMITIT_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    command = [sys.executable, "-u", "-c", SERVER, name(), signature(),
               json.dumps(_user())]  # fmt: skip
    with suppress(OSError):
        _servers[:] = [each for each in _servers if each.poll() is None]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
                 "stderr": subprocess.DEVNULL}  # fmt: skip
        _servers.append(subprocess.Popen(command, cwd="/", env=env, start_new_session=True,
                                         **quiet))  # fmt: skip
