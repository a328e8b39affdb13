"""Elective B: a benchmark of three networks."""

import lazy_loader

_NAMES = {
    "figures": "plot_costs plot_ladder",
    "bench": "benchmark_here",
    "measurements": (
        "audit_table load_measurements published_rows published_speeds tensor_core_gains"
    ),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
