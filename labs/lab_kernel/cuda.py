"""The first kernel in CUDA C++, compiled where NVIDIA's compiler is, and called from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("add.cu")
ARCHITECTURES = ("sm_80", "sm_90")  # A100, H100; the PTX of the last is compiled for later ones
Add = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def source() -> str:
    """The kernel's text, with the function that launches it."""
    return SOURCE.read_text()


def nvcc() -> str | None:
    """NVIDIA's compiler, or None where there is none."""
    return shutil.which("nvcc")


def compiled(folder: Path, *options: str, name: str = "add.so") -> Path:
    """Compile the kernel with nvcc.

    Raises:
        FileNotFoundError: nvcc is not there.
        RuntimeError: it found a mistake; the message is nvcc's.
    """
    if (compiler := nvcc()) is None:
        raise FileNotFoundError("nvcc is not on the PATH: it comes with NVIDIA's CUDA toolkit")
    made = folder / name
    command = [compiler, "-O3", *options, "-o", str(made), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return made


def ptx(architecture: str = "sm_90") -> str:
    """What the kernel becomes: the GPU's assembly, one thread's instructions. Needs no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        made = compiled(Path(folder), "-ptx", f"-arch={architecture}", name="add.ptx")
        return made.read_text()


def instructions() -> list[str]:
    """The kernel's own lines of that assembly, in their order, without declarations."""
    body = ptx().partition(".visible .entry")[2].partition("{")[2].rpartition("}")[0]
    lines = [line.strip() for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith((".", "//"))]


def loaded() -> Add | None:
    """The kernel as a function of tensors on the GPU; None where nvcc or a GPU is missing."""
    if nvcc() is None or not torch.cuda.is_available():
        return None
    folder = Path(tempfile.mkdtemp())
    targets = [f"-gencode=arch=compute_{each[3:]},code={each}" for each in ARCHITECTURES]
    library = ctypes.CDLL(str(compiled(folder, "-shared", "-Xcompiler=-fPIC", *targets)))

    def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (x, y, out)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        library.launch_add(*pointers, ctypes.c_long(x.numel()), stream)

    return add
