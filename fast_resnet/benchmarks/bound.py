"""Print how long a training step of ResNet-50 must take at least, by an H200's limits.

    python fast_resnet/benchmarks/bound.py

For the step as it is, and for two changes that do not exist:

- on load: a kernel that needs z = relu(bn(y)), or the gradient dy, computes it from y while it
  loads y, and a kernel that writes y or its gradient adds up the sums. Then z and dy are never
  stored, and no kernel only normalises. The values are the same.
- 8 bits: what forward writes has 8 bits. Gradients and products stay in 16.

Tensors between kernels count, each time that a kernel reads or writes them. Masks, weights and the
optimizer do not; kernels.py counts all that the step moves today.
"""

from __future__ import annotations

from collections import Counter

import kernels

BATCH = 256
WATTS = 700  # an H200's limit, by NVIDIA's data sheet
# Joules per image in fp16 at batch 256 (recordings/nvidia-h200: the rungs compile and algebra), and
# the narrow tensors that a block moves by each (the course's lab on the fast step).
JOULES = {"compile": 0.0984, "fast": 0.0672}
NARROW_TENSORS = {"compile": 100, "fast": 61}

# What each kernel moves: of forward's tensors, and of gradients. z1 counts as y1, which has its
# size, z2 as y2, and the identity as out; s is what the shortcut reads of x.
BLOCK = (
    ("conv1", "x y1", ""),
    ("bn1: sums", "y1", ""),
    ("bn1 and ReLU", "y1 y1", ""),
    ("conv2", "y1 y2", ""),
    ("bn2: sums", "y2", ""),
    ("bn2 and ReLU", "y2 y2", ""),
    ("Gram matrix", "y2", ""),
    ("conv3, bn3, addition, ReLU", "y2 out out", ""),
    ("P", "y2", "out"),
    ("dz, and bn2's sums", "y2 y2", "out y2"),
    ("ReLU and bn2", "y2", "y2 y2"),
    ("conv2: weights", "y1", "y2"),
    ("conv2: input", "", "y2 y1"),
    ("bn1: sums of gradients", "y1", "y1"),
    ("ReLU and bn1", "y1", "y1 y1"),
    ("conv1: weights", "x", "y1"),
    ("conv1: input", "", "y1 s x"),
)
BLOCK_ON_LOAD = (
    ("conv1, and bn1's sums", "x y1", ""),
    ("conv2, and bn2's sums", "y1 y2", ""),
    ("Gram matrix", "y2", ""),
    ("conv3, bn3, addition, ReLU", "y2 out out", ""),
    ("P", "y2", "out"),
    ("dz, and bn2's sums", "y2", "out y2"),
    ("conv2: weights", "y1 y2", "y2"),
    ("conv2: input, and bn1's sums", "y2 y1", "y2 y1"),
    ("conv1: weights", "x y1", "y1"),
    ("conv1: input", "y1", "y1 s x"),
)
SHORTCUT = (
    ("sums", "s", ""),
    ("Gram matrix", "s", ""),
    ("convolution", "s out", ""),
    ("P", "s", "out"),
    ("dz", "s", "out s"),
)
STRIDE = (("every second pixel", "s s", ""),)
ENDS = (  # w is a byte for each element of the pooled images
    ("stem: convolution", "images y", ""),
    ("bn: sums", "y", ""),
    ("bn, ReLU, pooling", "y pooled", "w"),
    ("bn: sums of gradients", "y", "w pooled"),
    ("ReLU and bn", "y", "w pooled y"),
    ("stem: weights", "images", "y"),
    ("head", "last", "last"),
)
ENDS_ON_LOAD = (
    ("stem: convolution, and bn's sums", "images y", ""),
    ("bn, ReLU, pooling", "y pooled", "w"),
    ("bn: sums of gradients", "y", "w pooled"),
    ("stem: weights", "images y", "w pooled"),
    ("head", "last", "last"),
)


def moved(parts: tuple, elements: dict[str, int]) -> Counter:
    """Return the elements of forward's tensors, and of gradients, that these kernels move."""
    total = Counter()
    for _, forward, gradients in parts:
        total["forward"] += sum(elements[name] for name in forward.split())
        total["gradients"] += sum(elements[name] for name in gradients.split())
    return total


def traffic(on_load: bool) -> Counter:
    """Return the elements that a step of ResNet-50 moves per image of 224 pixels."""
    pooled, last = 64 * 56**2, 2048 * 7**2
    ends = {"images": 4 * 224**2, "y": 64 * 112**2, "pooled": pooled, "w": pooled // 2}
    total = moved(ENDS_ON_LOAD if on_load else ENDS, ends | {"last": last})
    x, height_in = pooled, 56
    for width, blocks, height in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for number in range(blocks):
            y2, s = width * height**2, x * height**2 // height_in**2
            sizes = {"x": x, "y1": width * height_in**2, "y2": y2, "out": 4 * y2, "s": s}
            total += moved(BLOCK_ON_LOAD if on_load else BLOCK, sizes)
            if not number:
                total += moved(SHORTCUT[on_load:] if x != pooled else SHORTCUT[1:], sizes)
                total += moved(STRIDE if s < x and not on_load else (), sizes)
            x, height_in = 4 * y2, height
    return total


def joules_per_byte() -> float:
    """Return what a byte less has saved, from the two recorded steps."""
    stages = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
    narrow = 2 * sum(blocks * width * height**2 for blocks, width, height in stages)
    bytes_saved = narrow * (NARROW_TENSORS["compile"] - NARROW_TENSORS["fast"])
    return (JOULES["compile"] - JOULES["fast"]) / bytes_saved


def table() -> list[list[str]]:
    """Return rows: the step, GB, ms by bandwidth and FLOPs, images/s, joules, images/s by power."""
    flops = sum(kernels.of_shapes("resnet50", BATCH).flops.values())
    compute_ms, today, rows = 1e3 * flops / kernels.PEAK, 2 * sum(traffic(False).values()), []
    for design in ("as it is", "on load", "8 bits", "on load, 8 bits"):
        elements = traffic("load" in design)
        size = (1 if "8" in design else 2) * elements["forward"] + 2 * elements["gradients"]
        ms = 1e3 * BATCH * size / kernels.BANDWIDTH
        joules = JOULES["fast"] - joules_per_byte() * (today - size)
        speed = 1e3 * BATCH / max(ms, compute_ms)
        numbers = size * BATCH / 1e9, ms, compute_ms, speed, joules, WATTS / joules
        formats = ".1f", ".1f", ".1f", ",.0f", ".3f", ",.0f"
        rows.append([design, *map(format, numbers, formats)])
    return rows


if __name__ == "__main__":
    for row in table():
        print(f"| {' | '.join(row)} |")
    print(f"{1e12 * joules_per_byte():.0f} pJ per byte")
