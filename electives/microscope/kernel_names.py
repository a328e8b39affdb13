"""Kernels' names: how to shorten and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainspeed import tensor_cores

# The informative parts of a long name: family, tile, instruction, alignment.
PARTS = re.compile(
    r"^\w*?(?:gemm|fprop|dgrad|wgrad)|(?<=_)tf32|tilesize\d+x\d+x\d+"
    r"|warpgroupsize|(?:sp)?tensor\d+(?:x\d+x\d+)?"
    r"|first_layer|c\d+r\d+s\d+|ffma|simt|align[ac]?\d+|split_k_kernel|[nN]chwTo\w+|[nN]hwcTo\w+"
)
LONG_NAME = 56  # characters
ARCHITECTURES = {"70": "Volta", "75": "Turing", "80": "Ampere", "90": "Hopper", "100": "Blackwell"}
TILE = re.compile(r"(?:nvjet(?:_sm\d+)?_[a-z]+_|tilesize|gemm_\w*?)(\d+)x(\d+)")
# Kernels that rewrite layouts or formats, pad, add up, or compute Fourier transforms.
HELPERS = re.compile(
    r"splitK|[rR]educe|[nN][cC]?[hH][wW][cC]?To|Memset|Offsets|Padding|elementwise|convertTensor"
    r"|tensorTransform|init_device_workspace|flip_filter|fft2d|region_transform"
)


def inner_name(kernel: str) -> str:
    """Return a kernel's name without its C++ templates, namespaces and arguments."""
    inner = re.search(r"<(cutlass\w+)>", kernel)
    kernel = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return inner[1] if inner else kernel.partition("<")[0].partition("(")[0]


def short_name(kernel: str) -> str:
    """Return a kernel's inner name, or its informative parts if that is long."""
    name = inner_name(kernel)
    if len(name) <= LONG_NAME:
        return name
    return " … ".join(dict.fromkeys(PARTS.findall(name))) or f"{name[:LONG_NAME]}…"


def family(kernel: str) -> str:
    """Return a kernel's library or alignment, and the architecture it was written for."""
    number = re.search(r"(?:sm|cutlass_)(\d{2,3})_", kernel)
    kind = re.search(r"nvjet|align\d+", kernel)
    words = [kind[0] if kind else "", ARCHITECTURES.get(number[1], "") if number else ""]
    return ", ".join(filter(None, words))


def tile(kernel: str) -> str:
    """Return the rows and columns of a block's result, as "128 x 256", or "" if not in the name.

    cuBLAS works column by column, so its rows come second.
    """
    match = TILE.search(kernel)
    return f"{match[1]} x {match[2]}" if match else ""


def main_kernel(kernels: Iterable[str]) -> str:
    """Return the kernel that multiplies: on Tensor Cores, or according to its name; or ""."""
    names = list(kernels)
    on_tensor_cores = [
        name for name in names if tensor_cores.classify(name).verdict == tensor_cores.USED
    ]
    candidates = [name for name in names if not HELPERS.search(name)]
    return next(iter(on_tensor_cores or candidates or names), "")
