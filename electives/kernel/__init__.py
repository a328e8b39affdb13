"""Elective K: a first GPU kernel."""

import lazy_loader

_NAMES = {
    "figures": "plot_bandwidth plot_grid plot_matmul_rate",
    "gpu_timing": "leaderboard load_measurements time_on_gpu",
    "hierarchy": "plot_gpu",
    "interpreter": "interpret",
    "tables": "traffic_by_tile",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["cuda"], {module: names.split() for module, names in _NAMES.items()}
)
