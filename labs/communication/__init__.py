"""Communication between ranks."""

from course.lazy import lazy_exports

_NAMES = {
    ".batchnorm": "rank_spread running_statistics",
    ".ddp": "script_lines",
    ".figures": "plot_bandwidth plot_buckets plot_rank_spread plot_timeline",
    ".metrics": "compare_metrics",
    "course.analysis.links": "measure_link recorded_links",
    "course.training.stochastic_depth": "Heads",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
