"""A function on several real processes that speak over gloo: for what needs no training script."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

WAITS_S = 20  # for a rank that does not answer
LOOKS_S = 0.05
CALL = "call.pickle"  # the function, and what it is given


def on_ranks(function: Callable[..., Any], ranks: int, *given: Any) -> list[Any]:
    """What `function(rank, ranks, *given)` returns on each of so many processes, by rank.

    Each is a new process with one thread, in one gloo group. The function must stand in a module;
    it returns what JSON can hold. Once a rank has failed, the others are ended: they
    would wait for it.

    Raises:
        RuntimeError: a rank failed; the message is its own.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        asked = {"ranks": ranks, "port": free.getsockname()[1], "folder": folder}
        (Path(folder) / CALL).write_bytes(pickle.dumps((function, given)))
        free.close()
        logs = [Path(folder) / f"{rank}.log" for rank in range(ranks)]
        command = [sys.executable, "-m", __spec__.name, json.dumps(asked)]
        processes = [
            subprocess.Popen([*command, str(rank)], stderr=log.open("w"), stdout=subprocess.DEVNULL)
            for rank, log in enumerate(logs)
        ]
        try:
            failed = _first_to_fail(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            said = logs[failed].read_text().strip().splitlines() or ["it ended without a word"]
            error = said[-1].removeprefix(f"[rank{failed}]: ")  # as PyTorch marks a rank's words
            raise RuntimeError(f"rank {failed} of {ranks} failed: {error}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def _first_to_fail(processes: list[subprocess.Popen]) -> int | None:
    """Wait until all are over, or one has failed: its rank."""
    while True:
        codes = [process.poll() for process in processes]
        if failed := [rank for rank, code in enumerate(codes) if code]:
            return failed[0]
        if None not in codes:
            return None
        time.sleep(LOOKS_S)


def _be_rank(asked: dict[str, Any], rank: int) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        f"tcp://127.0.0.1:{asked['port']}",
        timeout=timedelta(seconds=WAITS_S),
        world_size=asked["ranks"],
        rank=rank,
    )
    # Of a function its name is written; the process that started this one wrote it a moment ago.
    function, given = pickle.loads((Path(asked["folder"]) / CALL).read_bytes())
    found = function(rank, asked["ranks"], *given)
    (Path(asked["folder"]) / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    _be_rank(json.loads(sys.argv[1]), int(sys.argv[2]))
