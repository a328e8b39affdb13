"""Lab 1.1: one script, one device."""

from course.lazy import lazy_exports

_NAMES = {
    ".batch_sweep": "fit sweep",
    ".data_figures": "plot_launch_queue plot_network_layers plot_samples",
    ".figures": "plot_anatomy plot_batch_sweep plot_predicted_peaks",
    ".memory_parts": "anatomy kept_without_grad",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
