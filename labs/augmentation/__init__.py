"""Augmentation on the CPU and on the GPU."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_beta plot_crop_sizes plot_mixtures plot_operations plot_rows",
    ".images": "apply_operations cutmix_loop load_script sample_batch",
    ".lab": "AUGMENTATION_CONFIG PROGRESSIVE_RESIZE",
    ".measurements": (
        "compare_calls count_operators epoch_times mixing_results operation_costs work_per_image"
    ),
    "course.data.augment": "randaugmented",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
