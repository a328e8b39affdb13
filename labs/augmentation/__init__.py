"""Augmentation on the CPU and on the GPU."""

import lazy_loader

_NAMES = {
    "figures": "plot_crop_sizes plot_mixtures plot_operations plot_rows",
    "images": "apply_operations sample_batch",
    "lab": "PROGRESSIVE_RESIZE run_settings",
    "measurements": "count_operators mixing_results operation_costs work_per_image",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
