"""Elective M: when do Tensor Cores run?"""

from course.lazy import lazy_exports

_NAMES = {
    ".cases": "Convolution Product",
    ".figures": "plot_channels plot_far plot_largest plot_line plot_near plot_odd",
    ".local": "here near on_gpu",
    ".other_sources": "channels",
    ".records": "beside_rule ceilings odd recorded",
    ".steps": "in_steps",
    ".tables": "generations tools",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
