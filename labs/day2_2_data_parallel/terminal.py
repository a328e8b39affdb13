"""Commands as in a terminal, with a rank that is killed or stopped on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer

from course.jobs import own_slurm
from course.jobs.processes import job_environment, loopback
from course.runs.run import PROJECT

STEP = 2  # after rank 1 has done this step, it gets the signal
FRAME = re.compile(r"(\[rank\d+\]: )?(  File |    )")  # a line of a traceback before its last one
LIMIT_S = 60


def run_command(command: str, send: str = "") -> None:
    """Run a command that starts by_hand.py, and print its output without the frames of tracebacks.

    Args:
        command: for bash, in the course's folder.
        send: a signal for rank 1 while it trains: "KILL", or "STOP", which freezes it.
    """
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    environment = job_environment() | own_slurm.environment()
    environment |= {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    if not command.startswith("srun"):
        environment["GLOO_SOCKET_IFNAME"] = loopback()
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    limit, pid = Timer(LIMIT_S, _end, (process,)), 0
    limit.start()
    try:
        for line in process.stdout:
            if not FRAME.match(line):
                print(line, end="")
            # Searched for, because two ranks may write into the same line.
            if match := re.search(r"rank 1 is local rank \d+ of \S+, process (\d+)", line):
                pid = int(match[1])
            if send and pid and f"rank 1, step {STEP}:" in line:
                print(f"--- SIG{send} for rank 1")
                os.kill(pid, getattr(signal, f"SIG{send}"))
        print(f"--- the command ended with exit code {process.wait()}")
    finally:
        limit.cancel()
        if send == "STOP" and pid:  # it would ignore a polite end
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _end(process)
        process.wait()
        process.stdout.close()


def _end(process: subprocess.Popen) -> None:
    """Ask a command and what it has started to end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
