"""Data formats, and where images are decoded."""

import lazy_loader

_NAMES = {
    "disk": "shared_files",
    "figures": (
        "plot_core_costs plot_epoch_orders plot_format_speeds plot_readers plot_shared_files"
    ),
    "formats": "core_costs",
    "lab": "format_configs",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
