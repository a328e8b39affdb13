"""Lab 2.1: feed it."""

from course.lazy import lazy_exports

_NAMES = {
    ".feeding": (
        "appetite appetites bytes_or_floats cores_needed decode_profile loaded_by_one trials"
    ),
    ".figures": "plot_decoding plot_rule plot_trials plot_waiting",
    ".lab": "LOADER_SETTINGS",
    "course.data.loader": "image_sets",
    "course.runs.failures": "advice summarize",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
