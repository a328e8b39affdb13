"""Lab 4.1: memory against time."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_front plot_held plot_passes",
    ".lab": "memory_config",
    ".measurements": "done_twice gradients_apart is_best memory_strategy ways",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
