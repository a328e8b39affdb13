"""A function on several real processes, over gloo or NCCL: for what needs no training script."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.jobs.processes import job_environment, loopback
from course.runs.files import write_atomically

if TYPE_CHECKING:
    from course.jobs.warm import kernels

WAITS_S = {"gloo": 20, "nccl": 120}  # for a rank that does not answer; on a GPU one may compile
LOOKS_S = 0.05
QUIET = "ignore::RuntimeWarning:runpy"
FAILED = ".failed"  # behind a rank's number: when that was, in ns
CALL = "call.pickle"  # the function, and what it is given


def on_ranks(
    function: Callable[..., Any], ranks: int, *given: Any, backend: str = "gloo"
) -> list[Any]:
    """What `function(rank, ranks, *given)` returns on each of so many processes, by rank.

    Each is a process of its own with one thread, in one group. The function must stand in a module;
    it returns what JSON can hold. Once a rank has failed, the others are ended: they would wait for
    it.

    Args:
        backend: "gloo" for ranks on the CPU, which find no GPU; "nccl" where each rank has one.

    Raises:
        RuntimeError: a rank failed; the message is its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = {"ranks": ranks, "folder": folder, "backend": backend}
        (Path(folder) / CALL).write_bytes(pickle.dumps((function, given)))
        env = job_environment()
        env["GLOO_SOCKET_IFNAME"] = loopback()  # or other machines could connect
        if backend == "gloo":
            env["CUDA_VISIBLE_DEVICES"] = ""  # or FSDP2 would move weights to a GPU
        processes = [_start(env, json.dumps(asked), str(rank)) for rank in range(ranks)]
        found = [Path(folder) / f"{rank}.json" for rank in range(ranks)]
        try:
            failed = _first_to_fail(processes, found)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            said = _log(asked, failed).read_text().strip().splitlines()
            error = said[-1] if said else "it ended without a word"
            error = error.removeprefix(f"[rank{failed}]: ")  # as PyTorch marks a rank's words
            raise RuntimeError(f"rank {failed} of {ranks} failed: {error}")
        return [json.loads(path.read_text()) for path in found]


def _start(env: dict[str, str], *arguments: str) -> subprocess.Popen | kernels.Kernel:
    """A rank's process: forked where there is a server of warm starts."""
    from course.jobs.warm import kernels  # only here: a rank needs nothing of Jupyter's

    module = ["-m", __spec__.name, *arguments]
    forked = kernels.start([sys.executable, "-P", *module], Path.cwd(), env)
    # Its package has imported this module before it is run, of which Python warns.
    return forked or subprocess.Popen([sys.executable, "-P", "-W", QUIET, *module], env=env)


def _log(asked: dict[str, Any], rank: int) -> Path:
    return Path(asked["folder"]) / f"{rank}.log"


def _first_to_fail(
    processes: list[subprocess.Popen | kernels.Kernel], found: list[Path]
) -> int | None:
    """Wait until all are over, or one has failed, which has found nothing: its rank.

    Who waits for a rank that has failed fails, too, as soon as its connection breaks. So of several
    it is the first, by the clock that all processes of a machine share.
    """
    while True:
        over = [rank for rank, each in enumerate(processes) if each.poll() is not None]
        if any(not found[rank].exists() for rank in over):
            silent = {rank: 0 for rank in over if not found[rank].exists()}  # killed, perhaps
            spoke = {
                rank: int(found[rank].with_suffix(FAILED).read_text())
                for rank in range(len(found))
                if found[rank].with_suffix(FAILED).exists()
            }
            failed = silent | spoke
            return min(failed, key=failed.__getitem__)
        if len(over) == len(processes):
            return None
        time.sleep(LOOKS_S)


def _be_rank(asked: dict[str, Any], rank: int) -> None:
    log = os.open(_log(asked, rank), os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        asked["backend"],
        f"file://{asked['folder']}/store",  # a file of this user's: no port, and no stranger there
        timeout=timedelta(seconds=WAITS_S[asked["backend"]]),
        world_size=asked["ranks"],
        rank=rank,
    )
    # Of a function its name is written; the process that started this one wrote it a moment ago.
    function, given = pickle.loads((Path(asked["folder"]) / CALL).read_bytes())
    try:
        found = function(rank, asked["ranks"], *given)
    except Exception:
        now = str(time.monotonic_ns())
        traceback.print_exc()
        write_atomically(Path(asked["folder"]) / f"{rank}{FAILED}", now)
        # At once: what it has asked of others, and leaving the group, might wait for them.
        os._exit(1)
    write_atomically(Path(asked["folder"]) / f"{rank}.json", json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    _be_rank(json.loads(sys.argv[1]), int(sys.argv[2]))
