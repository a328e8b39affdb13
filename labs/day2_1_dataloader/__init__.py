"""Lab 2.1: the DataLoader and its workers."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_cores_needed plot_decoding plot_trials plot_waiting",
    ".lab": "LOADER_SETTINGS",
    ".loading": (
        "compare_batch_dtypes core_speed cores_needed decode_profile training_speed "
        "training_speeds trials"
    ),
    "course.data.loader": "image_sets",
    "course.runs.failures": "advice summarize",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
