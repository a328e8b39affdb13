"""Memory and batch size."""

import lazy_loader

_NAMES = {
    "batch_sweep": "fit sweep",
    "figures": ("plot_batch_sweep plot_memory_by_part plot_memory_by_side plot_prediction_errors"),
    "memory_parts": "forward_peaks memory_by_part",
    "peaks": "compare_peaks fit_predicted_correctly median_error recorded_peaks",
    "volumes": "saved_outputs unet_memory",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
