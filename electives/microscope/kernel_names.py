"""Kernels' names: how to shorten and read them, and examples that show what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import pandas as pd

from trainspeed import tensor_cores

# How the name begins, and why the kernel does or does not use Tensor Cores.
EXAMPLES = (
    ("volta_s884gemm_fp16_128x256", "884 is Volta's product of 8 × 8 × 4"),
    ("turing_s1688gemm_fp16_128x128_ldg8_stages", "1688 is Turing's 16 × 8 × 8"),
    ("ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_tn", "16816 is Ampere's 16 × 8 × 16"),
    (
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32",
        "tensor16x8x16 is the same, as cuDNN writes it",
    ),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64", "tensorop is CUTLASS's word"),
    (
        "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "Hopper's wgmma needs a warp group of four warps",
    ),
    ("nvjet_sm90_hsh_128x192_64x5", "nvjet are cuBLAS's kernels since Hopper"),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8",
        "ffma is a multiply-add of ordinary cores; xmma is in both kinds of names",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128",
        "simt is CUTLASS's word for ordinary cores",
    ),
    ("turing_sgemm_32x32_sliced1x4", "Turing is only the GPU that it was written for"),
    (
        "void engines_precompiled::nchwToNhwcKernel<__nv_bfloat16",
        "it only rewrites a layout, for the kernel after it",
    ),
    (
        "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32",
        "a split_k_kernel adds the products of a different kernel, and keeps its name",
    ),
)
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

# The solution of the exercise.
TENSOR_CORE_WORDS = ("884", "1688", "16816", "tensor16x8", "tensorop", "warpgroup", "nvjet")
OTHER_WORDS = ("ffma", "simt", "ToNhwc", "ToNchw", "split_k_kernel")


def uses_tensor_cores(name: str) -> bool:
    """Return whether Tensor Cores multiply in a kernel, according to its name."""
    if any(word in name for word in OTHER_WORDS):
        return False
    return any(word in name for word in TENSOR_CORE_WORDS)


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


@cache
def labelled_examples() -> pd.DataFrame:
    """Return EXAMPLES with their full names: kernel, truth ("used" or "not"), why."""
    table = tensor_cores.labelled()
    rows = [table[table["kernel"].str.startswith(begin)].iloc[0] for begin, _ in EXAMPLES]
    examples = pd.DataFrame(rows)[["kernel", "truth"]].reset_index(drop=True)
    return examples.assign(why=[why for _, why in EXAMPLES])


def example_kernels() -> pd.DataFrame:
    """Return the names of the examples, without their truth."""
    return labelled_examples()[["kernel"]].map(inner_name)


@cache
def counted_kernels() -> pd.DataFrame:
    """Return the labelled kernels whose truth a hardware counter of an H100 showed."""
    table = tensor_cores.labelled()
    return table[table["evidence"].str.startswith("ncu")].reset_index(drop=True)
