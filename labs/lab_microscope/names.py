"""Names of kernels: a few that show how they are read, and all that a counter has judged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import pandas as pd

from course.analysis.traces.tensor_cores.rules import USED, classify, labelled

# How the name begins, and why it uses Tensor Cores, or not. The truth is that of the label.
BEGIN = (
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
        "a warp group, of four warps, is what Hopper's wgmma needs",
    ),
    ("nvjet_sm90_hsh_128x192_64x5", "nvjet are cuBLAS's kernels since Hopper"),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8",
        "ffma is a multiply-add of ordinary cores; xmma stands in both kinds of names",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128",
        "simt is CUTLASS's word for ordinary cores",
    ),
    ("turing_sgemm_32x32_sliced1x4", "Turing is only whom it was written for"),
    (
        "void engines_precompiled::nchwToNhwcKernel<__nv_bfloat16",
        "it only rewrites a layout, for the kernel after it",
    ),
    (
        "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32",
        "a split_k_kernel adds what another kernel has multiplied, and keeps its name",
    ),
)


# What is left of a long name: its family, its tile, its instruction, its alignment.
TELLING = re.compile(
    r"^\w*?(?:gemm|fprop|dgrad|wgrad)|(?<=_)tf32|tilesize\d+x\d+x\d+"
    r"|warpgroupsize|(?:sp)?tensor\d+(?:x\d+x\d+)?"
    r"|first_layer|c\d+r\d+s\d+|ffma|simt|align[ac]?\d+|split_k_kernel|[nN]chwTo\w+|[nN]hwcTo\w+"
)
LONG = 56


def brief(kernel: str) -> str:
    """A kernel's name without what a C++ compiler put around it, and of a long one what tells."""
    inner = re.search(r"<(cutlass\w+)>", kernel)
    kernel = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = inner[1] if inner else kernel.partition("<")[0].partition("(")[0]
    if len(name) <= LONG:
        return name
    return " … ".join(dict.fromkeys(TELLING.findall(name))) or f"{name[:LONG]}…"


ARCHITECTURES = {"70": "Volta", "75": "Turing", "80": "Ampere", "90": "Hopper", "100": "Blackwell"}


def family(kernel: str) -> str:
    """Of a product's kernel: its name's family or alignment, and for whom it was written."""
    number = re.search(r"(?:sm|cutlass_)(\d{2,3})_", kernel)
    told = re.search(r"nvjet|align\d+", kernel)
    written = ARCHITECTURES.get(number[1], "") if number else ""
    return ", ".join(each for each in (told[0] if told else "", written) if each)


# Kernels that prepare or finish: they rewrite layouts or formats, pad, add up, go over to Fourier's
# numbers and back.
HELPING = re.compile(
    r"splitK|[rR]educe|[nN][cC]?[hH][wW][cC]?To|Memset|Offsets|Padding|elementwise|convertTensor"
    r"|tensorTransform|init_device_workspace|flip_filter|fft2d|region_transform"
)


def main_kernel(names: Iterable[str]) -> str:
    """Of a case's kernels the one that multiplies: on Tensor Cores, or as its name says."""
    names = list(names)
    verdicts = {name: classify(name).verdict for name in names}
    used = [name for name in names if verdicts[name] == USED]
    others = [name for name in names if not HELPING.search(name)]
    return next(iter(used or others or names), "")


@dataclass(frozen=True)
class Name:
    """A kernel's name, whether its machine code multiplies on Tensor Cores, and what says so."""

    name: str
    used: bool
    why: str

    @property
    def short(self) -> str:
        """The name without what a C++ compiler put around it."""
        inner = re.search(r"<(cutlass\w+)>", self.name)
        return inner[1] if inner else self.name.removeprefix("void ").partition("<")[0]


def _few() -> tuple[Name, ...]:
    table = labelled()
    found = []
    for begin, why in BEGIN:
        row = table[table["kernel"].str.startswith(begin)].iloc[0]
        found.append(Name(row["kernel"], row["truth"] == "used", why))
    return tuple(found)


FEW = _few()


def few() -> pd.DataFrame:
    """The few names, without their truth: short, and in full (the index is a number)."""
    return pd.DataFrame([{"kernel": each.short} for each in FEW])


def told(function: object) -> pd.DataFrame:
    """What a function says of the few names, beside the truth and its reason."""
    rows = [
        {
            "kernel": brief(each.name),
            "told": "used" if function(each.name) else "not",
            "truth": "used" if each.used else "not",
            "why": each.why,
        }
        for each in FEW
    ]
    return pd.DataFrame(rows)


@cache
def judged_by_counters() -> pd.DataFrame:
    """The labelled kernels whose truth a hardware counter of an H100 showed."""
    table = labelled()
    return table[table["evidence"].str.startswith("ncu")].reset_index(drop=True)
