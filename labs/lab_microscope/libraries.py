"""cuBLAS and cuDNN called from C++, with the switches that PyTorch sets for its users."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import torch

from labs.day1_3_channels_last.convolution import LAYOUTS
from labs.lab_microscope.cases import dtype_of

HERE = Path(__file__).parent
NEEDS = {"products": ("cublas", "cublas_v2.h"), "convolutions": ("cudnn", "cudnn.h")}
TOOLKIT = "crt/host_defines.h"  # which CUDA's headers include, and PyTorch's packages leave out
# The libraries' names, and the numbers that their headers give them.
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
# What each allows, after NVIDIA's documentation of cuBLAS 13 and cuDNN 9; and what does the same in
# PyTorch (aten/src/ATen/cuda/CublasHandlePool.cpp, aten/src/ATen/cudnn/Descriptors.h).
CUBLAS, PRODUCT, CUDNN = "cuBLAS, of a handle", "cuBLAS, of a product", "cuDNN, of a convolution"
SWITCHES = (
    (CUBLAS, "CUBLAS_DEFAULT_MATH", "Tensor Cores, as far as no bit is lost", "the default"),
    (CUBLAS, "CUBLAS_TENSOR_OP_MATH", "fp32 rounded to fp16; deprecated", ""),
    (CUBLAS, "CUBLAS_TF32_TENSOR_OP_MATH", "fp32 rounded to TF32", "cuda.matmul.allow_tf32 = True"),
    (CUBLAS, "CUBLAS_PEDANTIC_MATH", "only the prescribed arithmetic: for tests", ""),
    (PRODUCT, "CUBLAS_COMPUTE_32F", "sums in fp32; what the handle allows", "always"),
    (PRODUCT, "CUBLAS_COMPUTE_32F_FAST_TF32", "fp32 rounded to TF32", ""),
    (PRODUCT, "CUBLAS_COMPUTE_32F_FAST_16F", "fp32 rounded to fp16", ""),
    (CUDNN, "CUDNN_DEFAULT_MATH", "fp32 rounded to TF32, from the A100 on", "the default in fp32"),
    (CUDNN, "CUDNN_TENSOR_OP_MATH", "Tensor Cores, without conversion", "always in fp16"),
    (CUDNN, "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION", "the same, with fp32 rounded to fp16", ""),
    (CUDNN, "CUDNN_FMA_MATH", "ordinary cores only", "cudnn.allow_tf32 = False"),
)
SPACE = 2**29  # bytes that an algorithm of cuDNN may work in


def source(name: str) -> str:
    """The text of a listing: "products" or "convolutions"."""
    return (HERE / f"{name}.cpp").read_text()


def switches() -> pd.DataFrame:
    """What each math mode, compute type and math type allows.

    Columns: whose, switch, allows, in_pytorch (what does the same, of torch.backends; "" where
    nothing does).
    """
    return pd.DataFrame(SWITCHES, columns=["whose", "switch", "allows", "in_pytorch"])


def folders() -> list[Path]:
    """Folders that may hold headers and libraries: PyTorch's packages, and a CUDA toolkit."""
    packages = Path(torch.__file__).parent.parent / "nvidia"
    toolkits = [Path("/usr/local/cuda"), Path(shutil.which("nvcc") or "/").resolve().parent.parent]
    return [each for each in (*packages.glob("*"), *toolkits) if (each / "include").is_dir()]


def compiled(name: str, folder: Path) -> Path:
    """Compile a listing: the machine needs a C++ compiler, and no GPU.

    Raises:
        FileNotFoundError: no compiler, or the library's header or itself is not on this machine.
        RuntimeError: the compiler found a mistake; the message is its own.
    """
    library, header = NEEDS[name]
    there = folders()
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler is here: install g++")
    if not any((each / "include" / header).exists() for each in there):
        raise FileNotFoundError(f"{header} is not here: it comes with PyTorch for CUDA")
    if not any((each / "include" / TOOLKIT).exists() for each in there):
        raise FileNotFoundError(f"{TOOLKIT} is not here: it comes with NVIDIA's CUDA toolkit")
    libraries = [each for home in there for each in home.glob(f"lib*/lib{library}.so*")]
    if not libraries:
        raise FileNotFoundError(f"lib{library} is not here: it comes with PyTorch for CUDA")
    made = folder / f"{name}.so"
    include = [f"-I{each / 'include'}" for each in there]
    command = [compiler, "-shared", "-fPIC", *include, "-o", str(made)]
    command += [str(HERE / f"{name}.cpp"), str(libraries[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return made


def tried() -> pd.DataFrame:
    """Whether each listing compiles on this machine; where not, what is missing.

    Columns: listing, compiles, said.
    """
    rows = []
    for name in NEEDS:
        said = ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                compiled(name, Path(folder))
            except (FileNotFoundError, RuntimeError) as error:
                said = str(error).splitlines()[0]
        rows.append({"listing": f"{name}.cpp", "compiles": "no" if said else "yes", "said": said})
    return pd.DataFrame(rows)


@cache
def loaded(name: str) -> ctypes.CDLL:
    """A listing, compiled and loaded beside PyTorch's own libraries; raises as `compiled` does."""
    torch.cuda.init()
    return ctypes.CDLL(str(compiled(name, Path(tempfile.mkdtemp()))))


@dataclass(frozen=True)
class CublasProduct:
    """A product of two square matrices by cublasGemmEx, with one of its switches."""

    dtype: str
    compute: str
    math: str
    side: int = 4096

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.side**3

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """The product as a call, with its matrices made beforehand."""
        multiply = loaded("products").multiply  # first: where it is not, nothing is made
        a, b, c = torch.randn(3, self.side, self.side, device=device, dtype=dtype_of(self.dtype))
        kind = VALUES["CUDA_R_32F" if self.dtype == "fp32" else "CUDA_R_16F"]
        how = VALUES[f"CUBLAS_{self.compute}"], VALUES[f"CUBLAS_{self.math}"]
        pointers = _pointers(a, b, c)

        def product(kept: tuple = (a, b)) -> torch.Tensor:
            _check(multiply(*pointers, self.side, kind, *how), "cuBLAS")
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
        """Multiplications and additions."""
        return 18 * self.images * self.px**2 * self.channels**2

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """The convolution as a call, with its tensors made beforehand."""
        library = loaded("convolutions")
        kind = {"device": device, "dtype": dtype_of(self.dtype)}
        x = torch.randn(self.images, self.channels, self.px, self.px, **kind)
        w = torch.randn(self.channels, self.channels, 3, 3, **kind)
        x, w = (each.to(memory_format=LAYOUTS[self.layout]) for each in (x, w))
        y, space = torch.empty_like(x), torch.empty(SPACE, dtype=torch.uint8, device=device)
        number = VALUES["CUDNN_DATA_FLOAT" if self.dtype == "fp32" else "CUDNN_DATA_HALF"]
        how = VALUES[f"CUDNN_TENSOR_{self.layout}"], VALUES[f"CUDNN_{self.math}"]
        chosen = ctypes.c_void_p()
        sizes = self.images, self.channels, self.px, number, *how
        said = library.choose(*sizes, ctypes.c_size_t(SPACE), ctypes.byref(chosen))
        _check(said, "cuDNN")
        given = chosen, *_pointers(x, w, y, space), ctypes.c_size_t(SPACE)

        def convolution(kept: tuple = (x, w, space)) -> torch.Tensor:
            _check(library.convolve(*given), "cuDNN")
            return y

        return convolution


def products() -> list[CublasProduct]:
    """The product with each switch that says something about Tensor Cores."""
    return [CublasProduct(*each) for each in PRODUCTS]


def convolutions() -> list[CudnnConvolution]:
    """The convolution in both formats and layouts, with each math type."""
    maths = [name.removeprefix("CUDNN_") for name in VALUES if name.startswith("CUDNN_")]
    return [
        CudnnConvolution(dtype, layout, math)
        for dtype in ("fp32", "fp16")
        for layout in LAYOUTS
        for math in maths
        if math.endswith(("MATH", "CONVERSION"))
    ]


def _pointers(*tensors: torch.Tensor) -> tuple[ctypes.c_void_p, ...]:
    return tuple(ctypes.c_void_p(each.data_ptr()) for each in tensors)


def _check(status: int, library: str) -> None:
    if status:
        raise RuntimeError(f"{library} refused, with status {status}")
