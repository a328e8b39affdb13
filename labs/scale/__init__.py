"""Scale and energy."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_power plot_training_times",
    ".published": "power training_times",
    ".full_training": "estimate_runs one_gpu several_gpus",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
