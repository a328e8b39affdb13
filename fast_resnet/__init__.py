"""relu(BatchNorm(z W') + identity) by algebra: a bottleneck ResNet that moves fewer bytes.

formulas.py derives it, and is to be read first; then plain.py, which trains with it anywhere. For a
GPU: fused.py, and under it forward.py and backward.py, products.py and rows.py, and the kernels.
"""

from course.training.algebra.forms import convert as convert
