"""Experiment tracking, energy and CO2."""

import lazy_loader

_NAMES = {
    "counters": "power_errors simulated_readings",
    "dashboard": "dashboard",
    "energy": "HOST PUE carbon carbon_by_grid joules",
    "exports": "export",
    "figures": "plot_dashboard plot_energy_errors plot_grams plot_run_comparison",
    "tracking": "explained_shares runs_table select_by_tags tracking_config",
    "trackers": "tags",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
