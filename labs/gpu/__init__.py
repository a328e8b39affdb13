"""Training on a GPU."""

import lazy_loader

_NAMES = {
    "figures": "plot_launch_queue plot_network_layers plot_samples",
    "review": "observe_loop",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
