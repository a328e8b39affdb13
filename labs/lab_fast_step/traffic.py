"""Who reads and writes what in a bottleneck's training step, and what was measured of it."""

from __future__ import annotations

import pandas as pd

from course.runs import recordings
from course.runs.run import PROJECT

MEASURED = PROJECT / "fast_resnet" / "benchmarks" / "measured_h100.jsonl"
WAYS = ("eager", "compile", "fast")  # as that file names them
HALF_BYTES = 2
H100_WATTS = 700  # what the card may draw: NVIDIA's data sheet of the H100 SXM
# Of ResNet-50 at 224 pixels: blocks, narrow channels, and pixels a side, of each layer.
LAYERS = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
# Part of a block's step, then the tensors that each way reads and writes there. A tensor of the
# narrow width counts 1, of the wide one 4. "eager": an operator a pass. "compile": what is element
# by element is one pass. "fast": the algebra of fast_resnet.
PASSES: tuple[tuple[str, str, int, int, int], ...] = (
    ("forward", "conv1: reads x, writes y1", 5, 5, 5),
    ("forward", "bn1 and ReLU: sums, then y1 to z1", 5, 3, 3),
    ("forward", "conv2: reads z1, writes y2", 2, 2, 2),
    ("forward", "bn2 and ReLU: sums, then y2 to z2", 5, 3, 3),
    ("forward", "conv3: reads z2; writes y3, or goes on", 5, 5, 1),
    ("forward", "bn3's sums: over y3, or over z2", 4, 4, 1),
    ("forward", "bn3, addition and ReLU", 28, 12, 8),
    ("backward", "ReLU and bn3: sums, then the gradient of y3", 32, 28, 0),
    ("backward", "conv3: gradients of its weights and of z2", 10, 10, 11),
    ("backward", "ReLU and bn2: sums, then the gradient of y2", 8, 5, 4),
    ("backward", "conv2: gradients of its weights and of z1", 4, 4, 4),
    ("backward", "ReLU and bn1: sums, then the gradient of y1", 8, 5, 5),
    ("backward", "conv1: gradients of its weights and of x", 10, 10, 10),
    ("backward", "both gradients of x are added", 12, 4, 4),
)


def passes() -> pd.DataFrame:
    """One row a part of a block without a shortcut's convolution: tensors read and written.

    Columns: pass, part, and each way. The wide tensors count 4.
    """
    return pd.DataFrame(PASSES, columns=["pass", "part", *WAYS])


def megabytes() -> pd.Series:
    """MB an image that all blocks move in a step, by way: stem, shortcuts and head are left out."""
    narrow = sum(blocks * channels * side**2 for blocks, channels, side in LAYERS)
    return passes()[[*WAYS]].sum() * narrow * HALF_BYTES / 1e6


def measured() -> pd.DataFrame:
    """ResNet-50 in fp16 at batch 256 on an H100, as fast_resnet's benchmark measured it.

    One row for each of `WAYS`. Columns: images_per_s, joules_per_image, watts.
    """
    table = pd.read_json(MEASURED, lines=True).set_index("way")
    table = table.query("network == 'resnet50' and dtype == 'fp16' and batch == 256").loc[[*WAYS]]
    table = table[["images_per_s", "joules_per_image"]]
    return table.assign(watts=table["images_per_s"] * table["joules_per_image"])


def ceilings() -> dict[str, float]:
    """Of the H100: what its memory moves, tb_per_s, as recorded; what it may draw, watts."""
    copied = recordings.load("nvidia-h100")["ceilings"]["copy_tb_per_s"]
    return {"tb_per_s": copied, "watts": H100_WATTS}
