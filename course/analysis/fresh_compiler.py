"""A context in which PyTorch compiles everything again."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import torch

NO_COMPILER = (
    "torch.compile writes C++ for a CPU, and this machine has no C++ compiler. Install one "
    "(Debian, Ubuntu: apt install g++; macOS: xcode-select --install; Slurm: module load gcc)."
)


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Run the block without compiled functions in memory, without prints and Dynamo's warnings.

    Raises:
        RuntimeError: the machine has no C++ compiler; the message explains how to install one.
    """
    # The second logger warns that a GPU is missing.
    logs = [logging.getLogger(name) for name in ("torch._dynamo", "torch.utils.cpp_extension")]
    levels = [log.level for log in logs]
    torch.compiler.reset()
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except Exception as error:
        causes = (error, error.__cause__, error.__context__, getattr(error, "inner_exception", 0))
        if any(type(cause).__name__ == "InvalidCxxCompiler" for cause in causes):
            raise RuntimeError(NO_COMPILER) from error
        raise
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)
        torch.compiler.reset()
