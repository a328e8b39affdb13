"""Elective B: a benchmark of three networks."""

import lazy_loader

_NAMES = {
    "cost": "network_costs saved_gb",
    "figures": (
        "plot_busy plot_costs plot_ladder plot_scaling plot_speedups plot_time_by_kind traced_steps"
    ),
    "bench": "benchmark_here",
    "measurements": (
        "audit_table load_measurements published_rows published_speeds scaling_efficiency speedups "
        "tensor_core_gains"
    ),
    "verify": "Row",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
