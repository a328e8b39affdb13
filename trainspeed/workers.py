"""Stop and continue the DataLoader workers of this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def workers_stopped() -> Iterator[None]:
    """Stop this process's DataLoader workers, which would prepare batches in others' turns."""
    workers = [worker.pid for worker in multiprocessing.active_children() if worker.pid]
    _send(workers, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(workers, signal.SIGCONT)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended in the meantime
            os.kill(pid, number)
