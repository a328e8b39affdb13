"""Training on a GPU."""

import lazy_loader

_NAMES = {
    "exports": "export",
    "figures": "plot_network_layers plot_queues plot_samples",
    "review": "observe_loop",
    "timing": "SimulatedGpu",
    "trackers": "tags",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
