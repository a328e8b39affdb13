"""Communication between ranks."""

import lazy_loader

_NAMES = {
    "batchnorm": "rank_spread running_statistics",
    "ddp": "script_lines",
    "figures": "plot_bandwidth plot_buckets plot_rank_spread plot_timeline",
    "metrics": "compare_metrics",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
