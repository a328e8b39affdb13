"""The DataLoader and its workers."""

import lazy_loader

_NAMES = {
    "figures": "plot_cores_needed plot_decoding plot_schedule plot_trials plot_waiting",
    "lab": "LOADER_SETTINGS loader_settings",
    "loading": "core_speed decode_profile loads_alone training_speeds trials",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
