"""A drawing of an H100: its multiprocessors, and its memories with their sizes and speeds.

The numbers are for the SXM version, from NVIDIA's white paper "NVIDIA H100 Tensor Core GPU
Architecture" (2022, https://resources.nvidia.com/en-us-tensor-core) and its table of compute
capability 9.0; speeds that were measured are the course's recordings.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, Picture, arrow, box
from course.runs import recordings

CLUSTERS = (16, 16, 18, 16, 16, 18, 16, 16)  # multiprocessors of each; their places vary by chip
SCHEDULERS = 4  # of a multiprocessor; each has a Tensor Core and a quarter of the registers
FP32_CORES = 128  # of a multiprocessor
REGISTERS_KB, L1_KB = 256, 256  # of a multiprocessor
L2_MB, MEMORY_GB, MEMORY_TB_PER_S = 50, 80, 3.35
WARPS, WARP = 64, 32  # resident warps of a multiprocessor, threads of a warp


def plot_gpu() -> Picture:
    """Draw an H100 and, enlarged, one of its multiprocessors."""
    measured = recordings.part("nvidia-h100", "ceilings")["copy_tb_per_s"]
    # Of small copies, which stay in the cache; starting each takes a part of the time.
    cache = max(row["tb_per_s"] for row in recordings.part("nvidia-h100", "caches")["rows"])
    sms = sum(CLUSTERS)
    picture = Picture(10, 4.6, alt=_alt(measured, cache))
    axes = picture.add_subplot()
    axes.set(xlim=(0, 10), ylim=(0, 4.6))
    axes.axis("off")
    box(axes, 0.05, 0.05, 5.5, 4.5, "white", f"H100: {len(CLUSTERS)} clusters (GPC), {sms} SMs")
    for number, count in enumerate(CLUSTERS):
        _draw_cluster(axes, 0.2 + 1.33 * (number % 4), 3.15 - 1.1 * (number // 4), count)
    words = f"L2 cache: {L2_MB} MB, shared by all SMs\nat least {cache:.1f} TB/s measured"
    box(axes, 0.2, 1.25, 5.2, 0.6, SKY, words)
    memory = f"memory (HBM3): {MEMORY_GB} GB\n{MEMORY_TB_PER_S} TB/s by data sheet, "
    box(axes, 0.2, 0.2, 5.2, 0.75, PURPLE, f"{memory}{measured:.1f} TB/s measured")
    for x in (1.2, 2.8, 4.4):
        arrow(axes, (x, 0.95), (x, 1.25))
        arrow(axes, (x, 1.85), (x, 2.02))
    _draw_multiprocessor(axes, sms)
    return picture


def _draw_cluster(axes: Axes, left: float, low: float, count: int) -> None:
    box(axes, left, low, 1.22, 1.0, "white")
    for place in range(count):
        x, y = left + 0.08 + 0.18 * (place % 6), low + 0.1 + 0.29 * (place // 6)
        axes.add_patch(Rectangle((x, y), 0.15, 0.24, color=GREEN, lw=0))


def _draw_multiprocessor(axes: Axes, sms: int) -> None:
    """Draw a multiprocessor at the right, with lines from its place in the GPU."""
    for y in (0.05, 4.55):
        axes.plot([5.4, 6.0], [3.6, y], color=GREY, lw=0.8, ls=":", zorder=0)
    box(axes, 6.0, 0.05, 3.95, 4.5, "white", "one multiprocessor (SM)")
    parts = (
        (3.45, ORANGE, "warp\nscheduler"),
        (2.55, BLUE, f"registers\n{REGISTERS_KB // SCHEDULERS} KB"),
        (1.65, GREEN, f"{FP32_CORES // SCHEDULERS} fp32 cores\n1 Tensor Core"),
    )
    for number in range(SCHEDULERS):
        for low, colour, words in parts:
            box(axes, 6.12 + 0.94 * number, low, 0.86, 0.75, colour, words)
    words = f"shared memory and L1 cache: {L1_KB} KB"
    box(axes, 6.12, 0.75, 3.68, 0.7, SKY, words)
    total = f"all {sms} SMs: {sms * REGISTERS_KB / 1024:.0f} MB of registers,"
    words = f"{total}\n{sms * L1_KB / 1024:.0f} MB of shared memory and L1"
    axes.text(7.97, 0.38, words, ha="center", va="center", fontsize=8, color=DARK)


def _alt(measured: float, cache: float) -> str:
    return (
        f"H100: {len(CLUSTERS)} clusters with {sum(CLUSTERS)} multiprocessors. Each multiprocessor "
        f"has {SCHEDULERS} warp schedulers, {SCHEDULERS} Tensor Cores, {REGISTERS_KB} KB of "
        f"registers, {L1_KB} KB of shared memory and L1 cache. Below them, an L2 cache of {L2_MB} "
        f"MB, at least {cache:.1f} TB/s measured, and {MEMORY_GB} GB of memory, {MEMORY_TB_PER_S} "
        f"TB/s by data sheet, {measured:.1f} TB/s measured"
    )
