"""Lab 0.1: start here."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_node plot_supercomputer",
    ".nodes": "cluster machine",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
