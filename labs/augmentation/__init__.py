"""Augmentation on the CPU and on the GPU."""

import lazy_loader

_NAMES = {
    "figures": "plot_beta plot_crop_sizes plot_mixtures plot_operations plot_rows",
    "images": "apply_operations cutmix_loop load_script sample_batch",
    "lab": "AUGMENTATION_CONFIG PROGRESSIVE_RESIZE",
    "measurements": (
        "compare_calls count_operators epoch_times mixing_results operation_costs work_per_image"
    ),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
