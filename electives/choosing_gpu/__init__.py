"""Choosing a GPU by memory, speed, energy and price."""

import lazy_loader

_NAMES = {
    "estimates": "estimate_speeds recorded_speed",
    "figures": "plot_energy",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
