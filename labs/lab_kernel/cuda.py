"""The first kernel in CUDA C++: its source, its assembly, and the compiled kernel."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("add.cu")
ARCHITECTURES = ("80", "90")  # A100, H100


def source() -> str:
    """Return the kernel's source, with the function that launches it."""
    return SOURCE.read_text()


def nvcc() -> str | None:
    """Return the path of NVIDIA's compiler, or None."""
    return shutil.which("nvcc")


def _compile(output: Path, *options: str) -> Path:
    """Compile the kernel with nvcc.

    Raises:
        FileNotFoundError: nvcc is missing.
        RuntimeError: the source has a mistake; the message is nvcc's.
    """
    if (compiler := nvcc()) is None:
        raise FileNotFoundError("nvcc is not on the PATH: install NVIDIA's CUDA toolkit")
    command = [compiler, "-O3", *options, "-o", str(output), str(SOURCE)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr or process.stdout)
    return output


def instructions() -> list[str]:
    """Return one thread's instructions in PTX, the GPU's assembly. It needs nvcc, but no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = _compile(Path(folder, "add.ptx"), "-ptx", "-arch=sm_90").read_text()
    body = ptx.partition(".visible .entry")[2].partition("{")[2].rpartition("}")[0]
    lines = [line.strip() for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith((".", "//"))]


def load_add() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None:
    """Compile the kernel into add(x, y, out) for tensors on the GPU; None without nvcc or GPU."""
    if nvcc() is None or not torch.cuda.is_available():
        return None
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
    output = Path(tempfile.mkdtemp(), "add.so")
    library = ctypes.CDLL(str(_compile(output, "-shared", "-Xcompiler=-fPIC", *targets)))

    def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y, out)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        library.launch_add(*pointers, ctypes.c_long(x.numel()), stream)

    return add
