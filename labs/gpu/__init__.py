"""Training on a GPU."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_launch_queue plot_network_layers plot_samples",
    ".review": "observe_loop",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
