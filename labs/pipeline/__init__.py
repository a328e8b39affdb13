"""Pipeline parallelism."""

import lazy_loader

_NAMES = {
    "configs": "train_splits",
    "figures": "plot_cuts plot_ideal plot_order plot_run",
    "measurements": "compare_pipelines",
    "schedules": "bubble_share",
    "stages": "balanced_splits measure_pieces",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
