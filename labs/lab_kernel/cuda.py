"""The first kernel in CUDA C++: its source and its assembly."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("add.cu")


def source() -> str:
    """Return the kernel's source, with the function that launches it."""
    return SOURCE.read_text()


def nvcc() -> str | None:
    """Return the path of NVIDIA's compiler, or None."""
    return shutil.which("nvcc")


def compile_source(output: Path, *options: str) -> Path:
    """Compile the kernel with nvcc, which must be here.

    Raises:
        RuntimeError: the source has a mistake; the message is nvcc's.
    """
    command = [nvcc(), "-O3", *options, "-o", str(output), str(SOURCE)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr or process.stdout)
    return output


def instructions() -> list[str]:
    """Return one thread's instructions in PTX, the GPU's assembly. It needs nvcc, but no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = compile_source(Path(folder, "add.ptx"), "-ptx", "-arch=sm_90").read_text()
    body = ptx.partition(".visible .entry")[2].partition("{")[2].rpartition("}")[0]
    lines = [line.strip() for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith((".", "//"))]
