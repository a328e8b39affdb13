"""Processes that the server of warm starts forks, started like `python -m MODULE`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from course.jobs.processes import alive
from course.jobs.warm import client
from course.jobs.warm.start import early_variables


class Kernel:
    """A forked process with the methods of `subprocess.Popen`.

    It ends when this object's connection to it closes, so at the latest with this process.
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
