"""Scale and energy."""

import lazy_loader

_NAMES = {
    "figures": "plot_energy plot_energy_errors plot_power plot_training_times",
    "full_training": "costs_on_one_gpu costs_on_several_gpus",
    "published": "HOST PUE power training_times",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
