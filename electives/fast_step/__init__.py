"""Elective A: the fast step."""

import lazy_loader

_NAMES = {
    "figures": "plot_limits plot_tensors plot_traffic",
    "traffic": "block_traffic hardware_limits load_measurements megabytes_per_image",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
