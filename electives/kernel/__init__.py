"""Elective K: a first GPU kernel."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_bandwidth plot_fused_kernels plot_grid plot_matmul_rate plot_traffic",
    ".gpu_timing": "load_measurements time_on_gpu",
    ".interpreter": "interpret",
    ".solutions": "load_tile store_tile",
    ".tables": "softmax_traffic traffic_by_tile",
    "labs.channels_last.hierarchy": "plot_gpu",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
