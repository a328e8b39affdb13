"""Lab 0: start here."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_node plot_power plot_supercomputer plot_training_times",
    "..day0_2_scale.published": "full_training power training_times",
    ".nodes": "cluster machine",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
