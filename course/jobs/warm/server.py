"""The server of warm starts: it imports PyTorch once, and forks from then on.

It forks the controllers of jobs, and the kernels of a rehearsal's notebooks.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from course.jobs import wait
from course.jobs.tickets import VARIABLE
from course.jobs.warm import client as warm_client
from course.jobs.warm import forks, fresh, start
from course.jobs.warm.forks import Forked
from course.jobs.warm.fresh import Process

IDLE_S = 600.0  # after so long without a job the server ends
LOOK_S = 1.0  # how often it looks whether it is still wanted
COMMAND = [sys.executable, "-m", "course.jobs.warm.server"]  # as which it is seen


def main() -> None:
    """`python -u -c … NAME SIGNATURE USER`: serve, unless another does or they do not fit."""
    name, signature, user = sys.argv[1:]
    if (name, signature) == (warm_client.name(), warm_client.signature()):
        fresh.show(COMMAND, dict(os.environ))
        _serve(name, signature, json.loads(user), import_all)
    os._exit(0)  # to finalize what was imported would take a second


def _serve(name: str, signature: str, user: list[float], prepare: Callable[[], None]) -> None:
    """Serve by this name, unless another does; prepared before anybody may ask."""
    with warm_client.place() as folder, open(f"{folder}/{name}.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        prepare()
        path = Path(f"{folder}/{name}.socket")
        path.unlink(missing_ok=True)  # of a server that was killed; the lock says it is gone
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(16)
            Server(listener, path, signature, user).serve()


def import_all() -> None:
    """Import what a training script does, and what its controller and supervisor do."""
    from course.jobs import supervise  # noqa: F401

    start.prepare()
    import torch._dynamo  # noqa: F401 - of the first optimizer


class Server:
    """Forks a controller or a kernel when it is asked for one, as long as somebody may ask.

    With its first kernel it forks a server for the kernels to come, which imports more. A fork
    for a job, of which there are many more, would take longer by what that has in memory.

    Attributes:
        jobs: the controllers and kernels that run.
        users: processes that jobs were launched for: heads of sessions, a Jupyter kernel say.
        of_kernels: the server for kernels, once there is one.
    """

    def __init__(
        self, listener: socket.socket, path: Path, signature: str, user: list[float]
    ) -> None:
        self.listener, self.path, self.signature = listener, path, signature
        self.inode = path.stat().st_ino
        self.jobs: list[Forked] = []
        self.of_kernels: Forked | None = None
        self.users = [user]
        self.last_job = time.monotonic()
        self.ended = False

    def serve(self) -> None:
        """Answer until nobody is there to ask; jobs that run then go on by themselves."""
        while self._is_wanted():
            if select.select([self.listener], [], [], LOOK_S)[0]:
                with suppress(OSError, ValueError), self.listener.accept()[0] as client:
                    self._answer(client)
        with suppress(OSError):
            if self.path.stat().st_ino == self.inode:
                self.path.unlink()

    def _is_wanted(self) -> bool:
        from course.jobs.processes import alive

        self.jobs = [job for job in self.jobs if job.poll() is None]
        if self.of_kernels:
            self.of_kernels.poll()  # or it would stay as a zombie
        try:
            here = self.path.stat().st_ino == self.inode
        except OSError:
            here = False
        if self.ended or not here:
            return False
        if self.jobs:
            self.last_job = time.monotonic()
            return True
        self.users = [user for user in self.users if alive(user)]
        return bool(self.users) and time.monotonic() < self.last_job + IDLE_S

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(warm_client.ANSWER_S)
        with client.makefile("rb") as lines:
            request = json.loads(lines.readline())
        if not {"job", "kernel"} & {*request}:
            _tell(client, signature=self.signature, pid=os.getpid())
        elif request["signature"] != self.signature:
            self.ended = True
            _tell(client)
        elif (kernel := request.get("kernel")) and not start.suits(kernel["env"]):
            _tell(client)
        elif kernel:
            self._take(client, kernel, kernel["command"], partial(_be_kernel, client))
            if warm_client.KERNEL in kernel["command"]:
                self._serve_kernels(kernel["user"])
        else:
            job = request["job"]
            command = [sys.executable, wait.__file__, job["folder"]]
            self._take(client, job, command, partial(_control, client, job["folder"], job["tasks"]))

    def _take(
        self,
        client: socket.socket,
        asked: dict[str, Any],
        command: list[str],
        body: Callable[[], None],
    ) -> None:
        with open(os.devnull, "w") as nowhere:
            process = Process(
                command,
                asked["env"],
                Path(asked["cwd"]),
                session=True,
                stdout=nowhere.fileno(),
                stderr=nowhere.fileno(),
            )
            self.jobs.append(forks.fork(body, process, keep=[client.fileno()]))
        if asked["user"] not in self.users:
            self.users.append(asked["user"])

    def _serve_kernels(self, user: list[float]) -> None:
        there_is_one = self.of_kernels and self.of_kernels.poll() is None
        if there_is_one or self.path.stem.endswith(warm_client.OF_KERNELS):
            return
        name = f"{self.path.stem}{warm_client.OF_KERNELS}"
        body = partial(_serve, name, self.signature, user, start.prepare_for_kernels)
        process = Process(COMMAND, dict(os.environ), Path("/"), session=True)
        self.of_kernels = forks.fork(body, process)


def _tell(client: socket.socket, **answer: Any) -> None:
    client.sendall(json.dumps(answer).encode() + b"\n")


def _control(client: socket.socket, folder: str, count: int) -> None:
    """Be a job's controller, once its launcher says that it counts on that."""
    from course.jobs.processes import identity

    client.settimeout(None)
    _tell(client, controller=identity(os.getpid()))
    said, handles, *_ = socket.recv_fds(client, 2, 2)
    if said == b"go":  # else the launcher has given up, and starts the job by itself
        client.close()
        wait.wait_for_turn(os.environ[VARIABLE], handles[1] if handles[1:] else None)
        wait.run_tasks(count, lambda rank: _start_task(folder, rank, count))


def _start_task(folder: str, rank: int, count: int) -> Forked:
    from course.jobs.supervise import LocalTask, supervise

    job_id = str(os.getpid())
    with (
        open(wait.log(folder, rank, "out"), "ab") as out,
        open(wait.log(folder, rank, "err"), "ab") as err,
    ):
        command = wait.task_command(folder, rank, count, job_id)
        streams = {"stdout": out.fileno(), "stderr": err.fileno()}
        process = Process(command, dict(os.environ), Path.cwd(), **streams)
        return forks.fork(partial(supervise, folder, LocalTask(rank, count, job_id)), process)


def _be_kernel(client: socket.socket) -> None:
    """Be a Jupyter kernel, as long as whoever asked for one holds the connection."""
    from course.jobs.processes import identity

    client.settimeout(None)
    _tell(client, kernel=identity(os.getpid()))
    threading.Thread(target=_end_with, args=(client,), daemon=True).start()
    if "matplotlib" in sys.modules:  # it has read this variable, which ipykernel is yet to set
        inline = "module://matplotlib_inline.backend_inline"
        sys.modules["matplotlib"].rcParams["backend"] = os.environ.get("MPLBACKEND") or inline
    start.be_module(sys.orig_argv)


def _end_with(client: socket.socket) -> None:
    with suppress(OSError):
        client.recv(1)
    os._exit(1)
