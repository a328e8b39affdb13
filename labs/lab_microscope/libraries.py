"""Listings in C++ that call cuBLAS and cuDNN, and the switches for Tensor Cores."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pandas as pd
import torch

FOLDER = Path(__file__).parent
HEADERS = {"products": ("cublas", "cublas_v2.h"), "convolutions": ("cudnn", "cudnn.h")}
TOOLKIT_HEADER = "crt/host_defines.h"  # CUDA's headers include it; PyTorch's packages lack it
# What each allows, from NVIDIA's documentation of cuBLAS 13 and cuDNN 9, and PyTorch's equivalent
# (aten/src/ATen/cuda/CublasHandlePool.cpp, aten/src/ATen/cudnn/Descriptors.h).
HANDLE, PRODUCT, CONVOLUTION = "cuBLAS handle", "cuBLAS product", "cuDNN convolution"
SWITCHES = (
    (HANDLE, "CUBLAS_DEFAULT_MATH", "Tensor Cores, as far as no bit is lost", "the default"),
    (HANDLE, "CUBLAS_TENSOR_OP_MATH", "fp32 rounded to fp16; deprecated", ""),
    (HANDLE, "CUBLAS_TF32_TENSOR_OP_MATH", "fp32 rounded to TF32", "cuda.matmul.allow_tf32 = True"),
    (HANDLE, "CUBLAS_PEDANTIC_MATH", "only the prescribed arithmetic: for tests", ""),
    (PRODUCT, "CUBLAS_COMPUTE_32F", "sums in fp32; what the handle allows", "always"),
    (PRODUCT, "CUBLAS_COMPUTE_32F_FAST_TF32", "fp32 rounded to TF32", ""),
    (PRODUCT, "CUBLAS_COMPUTE_32F_FAST_16F", "fp32 rounded to fp16", ""),
    (CONVOLUTION, "CUDNN_DEFAULT_MATH", "fp32 rounded to TF32, since the A100", "fp32's default"),
    (CONVOLUTION, "CUDNN_TENSOR_OP_MATH", "Tensor Cores, without conversion", "always in fp16"),
    (CONVOLUTION, "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION", "also fp32 rounded to fp16", ""),
    (CONVOLUTION, "CUDNN_FMA_MATH", "ordinary cores only", "cudnn.allow_tf32 = False"),
)


def listing(name: str) -> str:
    """Return the source of a listing: "products" or "convolutions"."""
    return (FOLDER / f"{name}.cpp").read_text()


def math_switches() -> pd.DataFrame:
    """Return what each math mode, compute type and math type allows.

    Columns: scope, switch, allows, in_pytorch (the equivalent in torch.backends, or "").
    """
    return pd.DataFrame(SWITCHES, columns=["scope", "switch", "allows", "in_pytorch"])


def compile_listing(name: str, folder: Path) -> Path:
    """Compile a listing into a shared library. It needs a C++ compiler, but no GPU.

    Raises:
        FileNotFoundError: the compiler, a header or the library is missing.
        RuntimeError: the source has a mistake; the message is the compiler's.
    """
    library, header = HEADERS[name]
    packages = Path(torch.__file__).parent.parent / "nvidia"
    toolkits = [Path("/usr/local/cuda"), Path(shutil.which("nvcc") or "/").resolve().parent.parent]
    homes = [home for home in (*packages.glob("*"), *toolkits) if (home / "include").is_dir()]
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("a C++ compiler is missing: install g++")
    for file, source in ((header, "PyTorch for CUDA"), (TOOLKIT_HEADER, "NVIDIA's CUDA toolkit")):
        if not any((home / "include" / file).exists() for home in homes):
            raise FileNotFoundError(f"{file} is missing: install {source}")
    libraries = [path for home in homes for path in home.glob(f"lib*/lib{library}.so*")]
    if not libraries:
        raise FileNotFoundError(f"lib{library} is missing: install PyTorch for CUDA")
    output = folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", *(f"-I{home / 'include'}" for home in homes)]
    command += ["-o", str(output), str(FOLDER / f"{name}.cpp"), str(libraries[0])]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr or process.stdout)
    return output


def compile_listings() -> pd.DataFrame:
    """Try to compile the listings on this machine.

    Columns: listing, compiles ("yes" or "no"), message (what is missing).
    """
    rows = []
    for name in HEADERS:
        message = ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                compile_listing(name, Path(folder))
            except (FileNotFoundError, RuntimeError) as error:
                message = str(error).splitlines()[0]
        compiles = "no" if message else "yes"
        rows.append({"listing": f"{name}.cpp", "compiles": compiles, "message": message})
    return pd.DataFrame(rows)
