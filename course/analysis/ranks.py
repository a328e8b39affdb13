"""Run a function on several processes in one process group, without a training script."""

from __future__ import annotations

import os
import re
import secrets
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import torch
from torch import distributed
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes

from course._compat import sign_objects
from course.jobs.processes import job_environment, loopback
from course.jobs.scripts import process_context

TIMEOUT_S = {"gloo": 20, "nccl": 120}  # for a rank that does not answer; on a GPU it may compile
CAUSES = {  # by a part of the error's text
    "Timed out": ": ranks wait for each other, or for a message that none sends or receives",
    "by peer": ": the other rank ended before",
}


def on_ranks(
    function: Callable[..., Any], ranks: int, *arguments: Any, backend: str = "gloo"
) -> list[Any]:
    """Run `function(rank, ranks, *arguments)` on each process, and return the results by rank.

    Each process has one thread, and is a fork of a process that has imported PyTorch. A notebook's
    functions are sent as code. When a rank fails, the others are ended.

    Args:
        backend: "gloo" for ranks on the CPU, without a GPU; "nccl" for a GPU each.

    Raises:
        RuntimeError: a rank failed; the message ends with its error.
    """
    # Only programs of this machine may connect; the working directory is not imported from.
    variables = {"GLOO_SOCKET_IFNAME": loopback(), "PYTHONSAFEPATH": "1"}
    if backend == "gloo":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # otherwise FSDP2 moves weights to a GPU
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.dict(os.environ, variables):
            method = process_context(preload=True).get_start_method()
            # The environment is that of now: a fork has the one of when its server was started.
            call = cloudpickle.dumps(lambda rank, ranks: function(rank, ranks, *arguments))
            key = secrets.token_bytes(32)
            parameters = (ranks, folder, backend, job_environment(), call, key)
            context = start_processes(_run_rank, parameters, ranks, join=False, start_method=method)
        try:
            while not context.join():
                pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            message = " ".join(re.split(r"\n(?=\S)", str(error).strip())[-1].split())
            # Without the rank, and Gloo's files and advice.
            message = re.sub(r"\[(rank|/)[^]]*\]:? |\. This is typically.*", "", message)
            message += next((words for part, words in CAUSES.items() if part in message), "")
            raise RuntimeError(f"rank {error.error_index} of {ranks} failed: {message}") from None
        finally:
            for process in context.processes:
                process.kill()
        results = [Path(folder, f"{rank}.pickle").read_bytes() for rank in range(ranks)]
        return [cloudpickle.loads(result) for result in results]


def _run_rank(
    rank: int,
    ranks: int,
    folder: str,
    backend: str,
    env: dict[str, str],
    call: bytes,
    key: bytes,
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the fork server ignores it
    os.environ.clear()
    os.environ.update(env)
    null = os.open(os.devnull, os.O_WRONLY)  # warnings of ranks would appear in the notebook
    os.dup2(null, 1)
    os.dup2(null, 2)
    torch.set_num_threads(1)
    sign_objects(key)
    store = f"file://{folder}/store"  # a file of this user, instead of a port
    timeout = timedelta(seconds=TIMEOUT_S[backend])
    distributed.init_process_group(backend, store, timeout, ranks, rank)
    try:
        result = cloudpickle.loads(call)(rank, ranks)
    except SystemExit:
        raise RuntimeError("it called exit() instead of returning") from None
    Path(folder, f"{rank}.pickle").write_bytes(cloudpickle.dumps(result))
    distributed.destroy_process_group()
