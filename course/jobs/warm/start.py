"""Warm starts: processes of a job that are forked from one that has imported PyTorch already.

`prepare` imports what a training script needs; `start_script` then forks instead of starting a
Python anew. A server does so for all jobs of a user (`course.jobs.warm.client` asks,
`course.jobs.warm.server` answers).
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from course.jobs.warm import forks, fresh
from course.jobs.warm.forks import Forked
from course.jobs.warm.fresh import Process

MODULES = (
    "torch",
    "torchvision",
    "threadpoolctl",
    "numpy.ma",  # which a record's quartiles need
    "torch.distributed.checkpoint.state_dict",  # for what trains in shards
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",  # and in stages
    "course.data.loader",
    "course.training.meter",
    "course.training.models",
    "course.training.optimizers",
    "course.training.precision",
    "course.training.profiling",
    "course.training.recorder",
    "course.training.sync_batchnorm",
)
# What notebooks begin with.
FOR_KERNELS = (
    "ipykernel.kernelapp",
    "course.charts",
    "course.widgets.quiz",
    "course.checks.verdict",
)
# Variables that libraries read while they are loaded, and not again.
READ_EARLY = (
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN",
    "DNNL_",
    "GLIBC_",
    "GOMP_",
    "GOTO_",
    "KINETO_",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "TORCH",
    "TZ",
)
# Of these names, but read when they are needed, or given to a fork by _set_threads.
READ_LATE = (
    "CUDA_VISIBLE_DEVICES",
    "KINETO_LOG_LEVEL",  # with the first profile, before which the course sets it
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCHELASTIC_",  # as ranks of torchrun meet
    "TORCHINDUCTOR_CACHE_DIR",  # which the compiler sets, too, as soon as it is imported
    "TORCH_NCCL_",
)
# An import sets it, so a process that has imported more than another is no other environment.
SET_BY_IMPORTS = {
    "KMP_DUPLICATE_LIB_OK": "True",  # PyTorch
    "KMP_INIT_AT_FORK": "FALSE",  # scikit-learn
}
_prepared: dict[str, Any] = {}


def prepare() -> None:
    """Import what a training script needs; `start_script` then forks. Needs `python -u`.

    Where the system allows no fork to tell its own name, `start_script` goes on starting anew.
    No accelerator is touched and no thread started, neither of which a fork would survive.
    """
    if is_prepared():
        return
    variable = "OPENBLAS_NUM_THREADS"  # numpy's library starts its threads when it is loaded
    kept, before = os.environ.get(variable), dict(os.environ)
    os.environ[variable] = "1"
    try:
        with _no_garbage():
            for name in MODULES:
                import_module(name)
    finally:
        os.environ.pop(variable)
        if kept is not None:
            os.environ[variable] = kept
    # Python puts a folder of the program's own at first.
    path = sys.path[:] if sys.flags.safe_path else sys.path[1:]
    late = {key: value for key, value in os.environ.items() if before.get(key) != value}
    try:
        fresh.show(sys.orig_argv, before)  # as every fork will: some systems do not allow it
    except OSError:
        return
    _prepared.update(path=path, variables=early_variables(before), set=late)
    _find_openblas()


def prepare_for_kernels() -> None:
    """Import what notebooks begin with, beside what a training script needs."""
    with _no_garbage():
        for name in FOR_KERNELS:
            import_module(name)
    if is_prepared():
        _find_openblas()


def _find_openblas() -> None:
    """Note where NumPy's library is, and others of its kind: to look takes 7 ms, in each fork."""
    from threadpoolctl import ThreadpoolController

    _prepared["openblas"] = ThreadpoolController().select(internal_api="openblas")


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Imports make a million objects that stay: looking for garbage takes a quarter of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def is_prepared() -> bool:
    """Does `start_script` fork here?"""
    return bool(_prepared)


def start_script(
    script: Path,
    *,
    cwd: Path,
    env: dict[str, str],
    stdout: int | None = None,
    stderr: int | None = None,
) -> Forked | subprocess.Popen:
    """Start `python -u script` in a session of its own: forked where this process is prepared.

    Args:
        stdout, stderr: file descriptors; None: those of this process.

    Raises:
        OSError: no such folder, or no process can be had.
    """
    command = [sys.executable, "-u", str(script)]
    if not suits(env):
        return subprocess.Popen(
            command, cwd=cwd, env=env, start_new_session=True, stdout=stdout, stderr=stderr
        )
    body = partial(forks.execute, script, _prepared["path"], before=_finish_imports)
    process = Process(command, env, cwd, session=True, stdout=stdout, stderr=stderr)
    return forks.fork(body, process)


def be_module(command: list[str]) -> None:
    """Run `python [-P] -m MODULE ARGUMENT …` in a fork of a process that is prepared."""
    _finish_imports()
    place = command.index("-m")
    module, *arguments = command[place + 1 :]
    sys.argv[:] = [module, *arguments]
    sys.path[:] = [*([] if "-P" in command[:place] else [os.getcwd()]), *_prepared["path"]]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def early_variables(env: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The variables that a library has read once it is imported, but for what imports set."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(READ_EARLY)
        and not name.startswith(READ_LATE)
        and SET_BY_IMPORTS.get(name) != value
    }


def suits(env: dict[str, str]) -> bool:
    """Would what is imported here be the same in a new process with this environment?"""
    if not is_prepared():
        return False
    late = _prepared["set"]  # it may be in `env` by way of this process, or not
    if late | early_variables(env) != late | _prepared["variables"]:
        return False
    asked = [env.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    return all(text.isascii() and text.isdigit() and int(text) > 0 for text in asked)


def _finish_imports() -> None:
    """What imports do in a new process by its own environment."""
    import torch

    for key, value in _prepared["set"].items():
        os.environ.setdefault(key, value)
    torch.default_generator.seed()  # by chance, as it is until a script seeds it
    _set_threads()


def _set_threads() -> None:
    """As many threads as a new process would have, by its own environment and cores."""
    import torch

    cores = len(os.sched_getaffinity(0))
    asked = int(os.environ.get("OMP_NUM_THREADS", cores))
    for_numpy = int(os.environ.get("OPENBLAS_NUM_THREADS", asked))
    _prepared["openblas"].limit(limits=min(for_numpy, cores))
    if "OMP_NUM_THREADS" not in os.environ or "MKL_NUM_THREADS" in os.environ:
        return
    most = torch.get_num_threads() if torch.backends.mkl.is_available() else asked  # MKL's limit
    torch.set_num_threads(min(asked, most))
