"""Jupyter kernels that the server of warm starts forks: a rehearsal needs one for each notebook.

Jupyter starts a kernel by way of a provisioner. The one here serves inside `forked` alone, that is
during a rehearsal: a kernel of JupyterLab starts as ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from traitlets.config import Config

from course.jobs.processes import alive
from course.jobs.warm import client
from course.jobs.warm.start import early_variables

NAME = "course-warm"
ENDS_WITHIN_S = 2  # a kernel that computes nothing, after it was asked to shut down


@contextmanager
def forked() -> Iterator[None]:
    """Kernels that are started meanwhile, from this process, are forked where that can be."""
    factory = KernelProvisionerFactory.instance()
    usual = factory.default_provisioner_name
    provisioner = f"{__name__}:{WarmProvisioner.__name__}"
    factory.provisioners[NAME] = EntryPoint(NAME, provisioner, factory.GROUP_NAME)
    factory.default_provisioner_name = NAME
    try:
        yield
    finally:
        factory.default_provisioner_name = usual


def encrypted() -> Config:
    """Settings of Jupyter by which a kernel, forked or not, and whoever asks it speak in secret.

    They speak by TCP, to which every user of a machine may listen; Unix sockets would not do, whose
    paths are short, and on a cluster's shared folders there are none. It takes a key of the kernel,
    which Jupyter makes where it and the kernel are new enough; else they speak as ever.
    """
    config = Config()
    if hasattr(KernelManager, "transport_encryption") and zmq.has("curve"):
        config.KernelManager.transport_encryption = "auto"
    return config


class WarmProvisioner(LocalProvisioner):
    """Jupyter's own, but for the start: a fork, or a new process where there is no server."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start a kernel: how to reach it, by the names of a connection file."""
        cwd, env = Path(kwargs.get("cwd") or Path.cwd()), kwargs.get("env") or dict(os.environ)
        is_ours = cmd[:3] == [sys.executable, "-m", client.KERNEL]
        process = start(cmd, cwd, env) if is_ours else None
        if process is None:
            return await super().launch_kernel(cmd, **kwargs)
        self.process, self.cwd = process, cwd
        self.pid = self.pgid = process.pid  # it leads a session of its own
        return self.connection_info

    async def send_signal(self, signum: int) -> None:
        """Send a signal, but do not interrupt a kernel that is being shut down.

        Jupyter interrupts it before it sends the shutdown request, in case a cell runs. A kernel
        that has just answered its last request would print "KeyboardInterrupt caught in kernel".
        `shutdown_requested` interrupts one that is really busy.
        """
        if signum == signal.SIGINT and self.parent.shutting_down:
            return
        await super().send_signal(signum)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Interrupt the kernel if it does not end by itself, because a cell still runs.

        The cell gets a KeyboardInterrupt, so that its `finally` blocks run before Jupyter ends the
        process.
        """
        for _ in range(10 * ENDS_WITHIN_S):
            if await self.poll() is not None:
                return
            await asyncio.sleep(0.1)
        await super().send_signal(signal.SIGINT)


class Kernel:
    """A kernel that is somebody else's child, with what Jupyter asks of a `subprocess.Popen`.

    It lives as long as this object's connection to it, so no longer than this process.
    """

    stdin = stdout = stderr = None

    def __init__(self, connection: socket.socket, identity: list[float]) -> None:
        self._connection, self._identity = connection, identity
        self.pid = int(identity[0])

    def poll(self) -> int | None:
        """None while it runs; then 1, since its exit code is the server's to know."""
        return None if alive(self._identity) else 1

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        with suppress(psutil.Error):
            if process := alive(self._identity):
                try:
                    process.wait(timeout)
                except psutil.TimeoutExpired as error:
                    raise subprocess.TimeoutExpired("ipykernel", timeout or 0) from error
        self._connection.close()
        return 1

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: its number may be another's by now."""
        with suppress(psutil.Error):
            if process := alive(self._identity):
                process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def start(command: list[str], cwd: Path, env: dict[str, str]) -> Kernel | None:
    """Let the server fork a kernel, or what else is started by `python [-P] -m MODULE ARGUMENT …`.

    Returns:
        None where nothing was started: it is to be done the cold way.
    """
    if not client.is_wanted() or early_variables(env) != early_variables(os.environ):
        return None
    asked = {"command": command, "env": env, "cwd": str(cwd), "user": client.user()}
    request = {"kernel": asked, "signature": client.signature()}
    names = [client.name()]
    if client.KERNEL in command:  # for later ones there is a server that has imported more
        names.insert(0, f"{names[0]}{client.OF_KERNELS}")
    for name in names:
        with suppress(OSError, ValueError), client.connected(name) as server:
            if identity := client.ask(server, request).get("kernel"):
                server.settimeout(None)
                return Kernel(server.dup(), identity)
    return None
