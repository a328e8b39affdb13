"""Memory traffic of a bottleneck's training step, and the measured speed of ResNet-50."""

from __future__ import annotations

import pandas as pd

from course.runs import PROJECT, recordings

MEASUREMENTS = PROJECT / "fast_resnet" / "benchmarks" / "measured_h100.jsonl"
METHODS = ["eager", "compile", "fast"]  # as that file names them
HALF_BYTES = 2
H100_WATTS = 700  # power limit: NVIDIA's data sheet of the H100 SXM
# Of ResNet-50 at 224 pixels: blocks, narrow channels and pixels per side of each stage.
STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
# Tensors that each method reads and writes in each part of a block's step. A narrow tensor counts
# 1, a wide one 4. "eager" makes one pass per operator; "compile" fuses elementwise operators;
# "fast" uses fast_resnet's formulas.
BLOCK_TRAFFIC = (
    ("forward", "conv1: reads x, writes y1", 5, 5, 5),
    ("forward", "bn1 and ReLU: sums, then y1 to z1", 5, 3, 3),
    ("forward", "conv2: reads z1, writes y2", 2, 2, 2),
    ("forward", "bn2 and ReLU: sums, then y2 to z", 5, 3, 3),
    ("forward", "conv3: reads z; writes y unless fused", 5, 5, 1),
    ("forward", "bn3's sums: over y, or over z", 4, 4, 1),
    ("forward", "bn3, addition and ReLU", 28, 12, 8),
    ("backward", "ReLU and bn3: sums, then the gradient of y", 32, 28, 0),
    ("backward", "conv3: gradients of its weights and of z", 10, 10, 11),
    ("backward", "ReLU and bn2: sums, then the gradient of y2", 8, 5, 4),
    ("backward", "conv2: gradients of its weights and of z1", 4, 4, 4),
    ("backward", "ReLU and bn1: sums, then the gradient of y1", 8, 5, 5),
    ("backward", "conv1: gradients of its weights and of x", 10, 10, 10),
    ("backward", "addition of both gradients of x", 12, 4, 4),
)


def block_traffic() -> pd.DataFrame:
    """Return the tensors read and written in each part of a block without a downsampling shortcut.

    Columns: pass, part, and each method, in units of a narrow tensor.
    """
    return pd.DataFrame(BLOCK_TRAFFIC, columns=["pass", "part", *METHODS])


def megabytes_per_image() -> pd.Series:
    """Return the MB per image that all blocks move in a step, without stem, shortcuts and head."""
    narrow = sum(blocks * channels * side**2 for blocks, channels, side in STAGES)
    return block_traffic()[METHODS].sum() * narrow * HALF_BYTES / 1e6


def load_measurements() -> pd.DataFrame:
    """Load what fast_resnet's benchmark measured: ResNet-50 in fp16, batch 256, on an H100.

    Index: method. Columns: images_per_s, joules_per_image, watts.
    """
    table = pd.read_json(MEASUREMENTS, lines=True).set_index("way")
    table = table.query("network == 'resnet50' and dtype == 'fp16' and batch == 256").loc[METHODS]
    table = table[["images_per_s", "joules_per_image"]].rename_axis("method")
    return table.assign(watts=table["images_per_s"] * table["joules_per_image"])


def hardware_limits() -> dict[str, float]:
    """Return the H100's recorded memory bandwidth, tb_per_s, and its power limit, watts."""
    bandwidth = recordings.load("nvidia-h100")["ceilings"]["copy_tb_per_s"]
    return {"tb_per_s": bandwidth, "watts": H100_WATTS}
