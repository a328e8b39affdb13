"""Lab 3.2: augmentation, on which side?"""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_beta plot_growing plot_mixed plot_operations plot_rows",
    ".images": "batch changed one_by_one script_functions",
    ".lab": "AUGMENTATION_CONFIG PROGRESSIVE_RESIZE",
    ".measurements": "brought epochs in_turns operation_costs operator_calls work_per_image",
    "course.data.augment": "randaugmented",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
