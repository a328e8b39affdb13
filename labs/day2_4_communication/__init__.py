"""Lab 2.4: communication between ranks."""

from course.lazy import lazy_exports

_NAMES = {
    ".batchnorm": "rank_spread running_statistics",
    ".figures": "plot_buckets plot_rank_spread plot_timeline",
    "course.training.stochastic_depth": "Heads",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
