"""Memory and batch size."""

import lazy_loader

_NAMES = {
    "batch_sweep": "sweep",
    "figures": "plot_batch_sweep plot_memory_by_part plot_memory_by_side",
    "peaks": "compare_peaks recorded_peaks",
    "step_memory": "plot_step_memory",
    "volumes": "saved_outputs unet_memory",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
