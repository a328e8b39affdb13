"""Kernels in CUDA C++: their source, and how PyTorch loads them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import torch

FOLDER = Path(__file__).parent
STREAM = "<c10/cuda/CUDAStream.h>"
# Functions for Python: parameters, and the launch on the tensors' memory.
WRAPPERS = {
    "cuda_add": (
        "torch::Tensor x, torch::Tensor y, torch::Tensor out",
        "launch_add(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), x.numel(), "
        "c10::cuda::getCurrentCUDAStream());",
    ),
    "cuda_row_maximum": (
        "torch::Tensor x, torch::Tensor out",
        "launch_row_maximum(x.data_ptr<float>(), out.data_ptr<float>(), x.size(0), x.size(1), "
        "c10::cuda::getCurrentCUDAStream());",
    ),
}


def source(name: str) -> str:
    """Return the source of "add" or "row_maximum", with the function that launches it."""
    return (FOLDER / f"{name}.cu").read_text()


def nvcc() -> str | None:
    """Return the path of NVIDIA's compiler, or None."""
    return shutil.which("nvcc")


def load(name: str, code: str, wrappers: dict[str, tuple[str, str]]) -> ModuleType | None:
    """Compile CUDA C++ for this machine's GPU; return a module with the functions of `wrappers`.

    Without a GPU or nvcc, or if the toolkit is incomplete, print the reason and return None.

    Args:
        wrappers: functions to call from Python, by name: parameters, and the launch.
    """
    if nvcc() is None or not torch.cuda.is_available():
        print("CUDA C++ is not run here: it needs nvcc and an NVIDIA GPU.")
        return None
    from torch.utils.cpp_extension import load_inline

    signatures = {name: f"void {name}({parameters})" for name, (parameters, _) in wrappers.items()}
    bodies = [f"{signatures[name]} {{ {launch} }}" for name, (_, launch) in wrappers.items()]
    declarations = "\n".join(f"{signature};" for signature in signatures.values())
    code = "\n".join([f"#include {STREAM}", code, *bodies])
    try:
        return load_inline(name, declarations, cuda_sources=code, functions=[*wrappers])
    except (RuntimeError, OSError) as error:  # ninja, a C++ compiler or a library is missing
        print(f"CUDA C++ is not run here: {str(error).splitlines()[0]}")
        return None


def load_kernels() -> ModuleType | None:
    """Load both kernels; they take contiguous fp32 tensors on the GPU and write into `out`."""
    return load("first_kernels", source("add") + source("row_maximum"), WRAPPERS)
