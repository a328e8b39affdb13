"""Scale and energy."""

import lazy_loader

_NAMES = {
    "figures": "plot_power plot_training_times",
    "published": "power training_times",
    "full_training": "estimate_runs one_gpu several_gpus",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
