"""Call cuBLAS and cuDNN from C++, with the switches that PyTorch sets for its users."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from course.runs.run import PROJECT
from electives.microscope.cases import dtype_of

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
VALUES = {
    "CUDA_R_32F": 0,
    "CUDA_R_16F": 2,
    "CUBLAS_DEFAULT_MATH": 0,
    "CUBLAS_TENSOR_OP_MATH": 1,
    "CUBLAS_PEDANTIC_MATH": 2,
    "CUBLAS_TF32_TENSOR_OP_MATH": 3,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUDNN_DATA_FLOAT": 0,
    "CUDNN_DATA_HALF": 2,
    "CUDNN_TENSOR_NCHW": 0,
    "CUDNN_TENSOR_NHWC": 1,
    "CUDNN_DEFAULT_MATH": 0,
    "CUDNN_TENSOR_OP_MATH": 1,
    "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION": 2,
    "CUDNN_FMA_MATH": 3,
}
PRODUCTS = (
    ("fp32", "COMPUTE_32F", "DEFAULT_MATH"),
    ("fp32", "COMPUTE_32F", "TENSOR_OP_MATH"),
    ("fp32", "COMPUTE_32F", "TF32_TENSOR_OP_MATH"),
    ("fp32", "COMPUTE_32F_FAST_TF32", "DEFAULT_MATH"),
    ("fp32", "COMPUTE_32F_FAST_16F", "DEFAULT_MATH"),
    ("fp16", "COMPUTE_32F", "DEFAULT_MATH"),
    ("fp16", "COMPUTE_32F_PEDANTIC", "DEFAULT_MATH"),
    ("fp16", "COMPUTE_32F", "PEDANTIC_MATH"),
)
WORKSPACE = 2**29  # bytes that an algorithm of cuDNN may use
SOURCES = PROJECT / "labs" / "microscope"
HEADERS = {"products": ("cublas", "cublas_v2.h"), "convolutions": ("cudnn", "cudnn.h")}
TOOLKIT_HEADER = "crt/host_defines.h"  # CUDA's headers include it; PyTorch's packages lack it


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
    command += ["-o", str(output), str(SOURCES / f"{name}.cpp"), str(libraries[0])]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr or process.stdout)
    return output


@cache
def load_listing(name: str) -> ctypes.CDLL:
    """Compile and load a listing, with PyTorch's own libraries."""
    torch.cuda.init()
    return ctypes.CDLL(str(compile_listing(name, Path(tempfile.mkdtemp()))))


@dataclass(frozen=True)
class CublasProduct:
    """A product of two square matrices by cublasGemmEx, with one of its switches."""

    dtype: str
    compute: str
    math: str
    side: int = 4096

    @property
    def flop(self) -> int:
        return 2 * self.side**3

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """Create the matrices, and return the product as a call."""
        multiply = load_listing("products").multiply
        a, b, c = torch.randn(3, self.side, self.side, device=device, dtype=dtype_of(self.dtype))
        kind = VALUES["CUDA_R_32F" if self.dtype == "fp32" else "CUDA_R_16F"]
        switches = VALUES[f"CUBLAS_{self.compute}"], VALUES[f"CUBLAS_{self.math}"]
        pointers = _pointers(a, b, c)

        def product(inputs: tuple = (a, b)) -> torch.Tensor:
            _check(multiply(*pointers, self.side, kind, *switches), "cuBLAS")
            return c

        return product


@dataclass(frozen=True)
class CudnnConvolution:
    """A 3×3 convolution by cudnnConvolutionForward, with one of its math types."""

    dtype: str
    layout: str
    math: str
    channels: int = 64
    px: int = 56
    images: int = 64

    @property
    def flop(self) -> int:
        return 2 * 9 * self.images * (self.px * self.channels) ** 2

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """Create the tensors, and return the convolution as a call."""
        library = load_listing("convolutions")
        kind = {"device": device, "dtype": dtype_of(self.dtype)}
        x = torch.randn(self.images, self.channels, self.px, self.px, **kind)
        w = torch.randn(self.channels, self.channels, 3, 3, **kind)
        x, w = (tensor.to(memory_format=LAYOUTS[self.layout]) for tensor in (x, w))
        y, space = torch.empty_like(x), torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        number = VALUES["CUDNN_DATA_FLOAT" if self.dtype == "fp32" else "CUDNN_DATA_HALF"]
        switches = VALUES[f"CUDNN_TENSOR_{self.layout}"], VALUES[f"CUDNN_{self.math}"]
        algorithm = ctypes.c_void_p()
        sizes = self.images, self.channels, self.px, number, *switches
        _check(library.choose(*sizes, ctypes.c_size_t(WORKSPACE), ctypes.byref(algorithm)), "cuDNN")
        arguments = algorithm, *_pointers(x, w, y, space), ctypes.c_size_t(WORKSPACE)

        def convolution(tensors: tuple = (x, w, space)) -> torch.Tensor:
            _check(library.convolve(*arguments), "cuDNN")
            return y

        return convolution


def products() -> list[CublasProduct]:
    """Return the product with each switch that concerns Tensor Cores."""
    return [CublasProduct(*switches) for switches in PRODUCTS]


def convolutions() -> list[CudnnConvolution]:
    """Return the convolution in both formats and layouts, with each math type."""
    names = [name.removeprefix("CUDNN_") for name in VALUES if name.startswith("CUDNN_")]
    return [
        CudnnConvolution(dtype, layout, name)
        for dtype in ("fp32", "fp16")
        for layout in LAYOUTS
        for name in names
        if name.endswith(("MATH", "CONVERSION"))
    ]


def _pointers(*tensors: torch.Tensor) -> tuple[ctypes.c_void_p, ...]:
    return tuple(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)


def _check(status: int, library: str) -> None:
    if status:
        raise RuntimeError(f"{library} failed with status {status}")
