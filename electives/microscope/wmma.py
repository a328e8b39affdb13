"""A product of two 16 × 16 matrices in CUDA C++ that uses Tensor Cores directly."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from course.runs import recordings
from electives.kernel import cuda
from trainspeed import tensor_cores

SOURCE = Path(__file__).with_name("wmma.cu")
MACHINE_CODE = Path(__file__).with_name("wmma_sass.txt")
PARAMETERS = "torch::Tensor a, torch::Tensor b, torch::Tensor out"
LAUNCH = (
    "launch_multiply((half *)a.data_ptr(), (half *)b.data_ptr(), out.data_ptr<float>(), "
    "c10::cuda::getCurrentCUDAStream());"
)


def wmma_source() -> str:
    """Return the kernel's source, with the function that launches it."""
    return SOURCE.read_text()


def run_wmma() -> None:
    """Run the kernel on this machine's GPU, and compare it with PyTorch's product in fp32."""
    kernels = cuda.load("wmma", wmma_source(), {"wmma_multiply": (PARAMETERS, LAUNCH)})
    if kernels is None:
        return
    a, b = torch.randn(2, 16, 16, device="cuda").half()
    out = torch.empty(16, 16, device="cuda")
    kernels.wmma_multiply(a, b, out)
    error = (out.cpu() - a.cpu().float() @ b.cpu().float()).abs().max()
    print(f"Run here: it differs from PyTorch's product by {error:.1e} at most.")


def library_instructions() -> pd.DataFrame:
    """Count the recorded kernels of cuBLAS and cuDNN by their matrix instruction.

    Index: instruction ("none": ordinary cores). Columns: kernels, and the name of one of them.
    """
    table = tensor_cores.read_commented(recordings.trace_folder("nvidia-h100") / "sass.csv")
    libraries = table[table["library"].str.contains("cublas|cudnn")].replace({"mma": {"": "none"}})
    groups = libraries.groupby(libraries["mma"].rename("instruction"))["kernel"]
    return groups.agg(kernels="count", example=lambda names: min(names, key=len))
