"""Scaling to many GPUs."""

import lazy_loader

_NAMES = {
    "efficiency": "efficiency_table",
    "figures": "plot_lost_time plot_overlap plot_scaling plot_weak_and_strong",
    "model": "config_buckets fit_link",
    "techniques": "compare_techniques",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
