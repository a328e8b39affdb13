"""Commands as in a terminal, with a rank that is killed or stopped on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from course.jobs import own_slurm
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
    environment = os.environ | own_slurm.environment()
    environment |= {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["timeout", str(LIMIT_S), "bash", "-c", command],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    pid = 0
    try:
        for line in process.stdout:
            if not FRAME.match(line):
                print(line, end="")
            # Searched for, because two ranks may write into the same line.
            if found := re.search(r"rank 1 is local rank \d+ of \S+, process (\d+)", line):
                pid = int(found[1])
            if send and pid and f"rank 1, step {STEP}:" in line:
                print(f"--- SIG{send} for rank 1")
                os.kill(pid, getattr(signal, f"SIG{send}"))
        print(f"--- the command ended with exit code {process.wait()}")
    finally:
        process.terminate()
        if send == "STOP":
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
