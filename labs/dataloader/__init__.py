"""The DataLoader and its workers."""

import lazy_loader

_NAMES = {
    "figures": "plot_cores_needed plot_decoding plot_trials plot_waiting",
    "lab": "LOADER_SETTINGS loader_settings",
    "loading": (
        "core_speed cores_needed decode_profile recorded_speeds time_scaled_decoding "
        "training_speed training_speeds trials"
    ),
    "numa": "load_on_cores numa_nodes",
    "verify": "judge_workers",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
