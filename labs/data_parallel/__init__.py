"""Data parallelism on several GPUs."""

from course.lazy import lazy_exports

_NAMES = {
    ".lab": "DDP_FULL_SIZE DDP_SETTINGS",
    ".sampling": "plot_sampler_order sampler_order",
    ".terminal": "run_command",
    "course.runs.ranks": "rank_table",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
