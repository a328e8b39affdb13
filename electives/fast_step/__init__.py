"""Elective A: the fast step."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_limits plot_tensors plot_traffic",
    ".traffic": "block_traffic hardware_limits load_measurements megabytes_per_image",
    "fast_resnet.formulas": "differences",
    "fast_resnet.plain": "convert",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
