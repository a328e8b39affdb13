"""Communication between ranks."""

import lazy_loader

_NAMES = {
    "ddp": "script_lines",
    "figures": "plot_buckets plot_calls plot_link_times plot_timeline",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
