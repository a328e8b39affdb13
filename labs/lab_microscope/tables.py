"""The table of Tensor Core generations."""

from __future__ import annotations

import pandas as pd

from course.analysis import gpus

# Architecture, GPU, its MHz for Tensor Cores, the instruction in machine code, its largest fp16
# product (m, n, k), how kernels' names show it. Sources: white papers of V100 (2017), Turing
# (2018), A100 (2020) and H100 (2022); PTX ISA 8.7, "mma", "wgmma" and "tcgen05.mma".
GENERATIONS = (
    ("Volta", "V100", 1530, "HMMA.884", (8, 8, 4), "s884, h884"),
    ("Turing", "T4", 1590, "HMMA.1688", (16, 8, 8), "s1688"),
    ("Ampere", "A100", 1410, "HMMA.16816", (16, 8, 16), "s16816, tensor16x8x16"),
    ("Hopper", "H100", 1830, "HGMMA.64x256x16", (64, 256, 16), "nvjet, warpgroup, wgmma"),
    ("Blackwell", "B200", None, "UTCHMMA", (128, 256, 16), "sm100, tcgen05"),
)


def generations() -> pd.DataFrame:
    """Return what one instruction multiplies, by architecture.

    Columns: instruction, m, n, k, flop, flop_per_clock (per multiprocessor in fp16: the data
    sheet's rate divided by clock and multiprocessors), in_names.
    """
    published = gpus.summary()
    rows = []
    for architecture, gpu, mhz, instruction, (m, n, k), words in GENERATIONS:
        clocks_per_s = 1e6 * mhz * published.loc[gpu, "sms"] if mhz else float("nan")
        rows.append(
            {
                "architecture": architecture,
                "instruction": instruction,
                "m": m,
                "n": n,
                "k": k,
                "flop": 2 * m * n * k,
                "flop_per_clock": round(1e12 * published.loc[gpu, "fp16"] / clocks_per_s, 0),
                "in_names": words,
            }
        )
    return pd.DataFrame(rows).set_index("architecture")
