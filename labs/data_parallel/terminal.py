"""Commands as in a terminal, with a rank that is killed or frozen while it trains."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from threading import Timer

import slurm_box
from course.jobs import job_environment, loopback
from course.runs import PROJECT

STEP = 2  # after rank 1 has done this step, it gets the signal
# A traceback's lines before its last one (faulthandler's have no comma), and a needless warning.
HIDDEN = re.compile(r"(\[rank\d+\]: )?(  File .*, line \d+, |    )|W.* master_addr is only used")
# Searched for, because two ranks may write into the same line.
PROCESS = re.compile(r"rank (\d+) is local rank \d+ of \S+, process (\d+)")
# As options of torchrun. It loads pickles from its store, and anyone can write to one at a port.
PRIVATE_STORE = {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_CONF": "store_type=file"}
PRIVATE_STORE |= {"PET_LOCAL_ADDR": "127.0.0.1"}
LIMIT_S = 60
UNTIL_WAITING_S = 2  # from the signal until rank 0 waits for rank 1
CANNOT_DUMP = (
    "py-spy can't read these processes. It must be installed (pip install py-spy) and allowed to: "
    "many containers forbid it, Ubuntu and macOS require root. Without it, SIGUSR1 makes rank 0 "
    "print its stack with faulthandler, which by_hand.py has registered; a frozen rank can't."
)


def run_command(command: str, send: str = "") -> None:
    """Run a command that starts by_hand.py, and print its output without the frames of tracebacks.

    Args:
        command: for bash, in the course's folder.
        send: a signal for rank 1 while it trains: "KILL", or "STOP", which freezes it. Then the
            stacks of both ranks are printed, and rank 1 is killed when torchrun ends it.
    """
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    environment = job_environment() | slurm_box.environment()
    environment |= {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    if not command.startswith("srun"):
        environment |= {"GLOO_SOCKET_IFNAME": loopback(), **PRIVATE_STORE}
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    limit, pids, is_due = Timer(LIMIT_S, _end, (process,)), {}, bool(send)
    limit.start()
    try:
        for line in process.stdout:
            if not HIDDEN.match(line):
                print(line, end="")
            pids |= {int(rank): int(pid) for rank, pid in PROCESS.findall(line)}
            if is_due and 1 in pids and f"rank 1, step {STEP}:" in line:
                is_due = False
                print(f"--- SIG{send} for rank 1")
                os.kill(pids[1], getattr(signal, f"SIG{send}"))
                if send == "STOP":
                    time.sleep(UNTIL_WAITING_S)
                    print_stacks(pids, environment["PATH"])
            if send == "STOP" and "closing signal SIGTERM" in line:
                print("--- SIGKILL for rank 1: frozen, it ignores SIGTERM, and torchrun waits 30 s")
                os.kill(pids[1], signal.SIGKILL)
        print(f"--- the command ended with exit code {process.wait()}")
    finally:
        limit.cancel()
        if send == "STOP" and 1 in pids:  # it would ignore a polite end
            with suppress(ProcessLookupError):
                os.kill(pids[1], signal.SIGKILL)
        _end(process)
        process.wait()
        process.stdout.close()


def print_stacks(pids: dict[int, int], path: str) -> None:
    """Print where each rank is, with py-spy; without it, let rank 0 print its own stack.

    Args:
        pids: the ranks' process ids.
        path: folders in which to search for py-spy.
    """
    tool = shutil.which("py-spy", path=path)
    for rank, pid in sorted(pids.items()):
        # Without --nonblocking, py-spy would wait until it can stop the process.
        command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
        plain = {**os.environ, "CLICOLOR_FORCE": "0"}  # a notebook's kernel requests colours
        shown = tool and subprocess.run(command, capture_output=True, text=True, env=plain)
        if not shown or shown.returncode:
            print(textwrap.fill(f"--- {CANNOT_DUMP}", 88))
            os.kill(pids[0], signal.SIGUSR1)
            return
        print(f"--- py-spy dump --pid {pid}  (rank {rank})")
        print(shown.stdout.strip())


def _end(process: subprocess.Popen) -> None:
    """Ask a command and what it has started to end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
