"""Elective K: a first GPU kernel."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_adding plot_fused plot_grid plot_moved plot_products",
    ".gpu_timing": "on_gpu",
    ".interpreter": "interpret moved_by",
    ".measurements": "recorded",
    ".tables": "steps tile_functions tiles words",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
