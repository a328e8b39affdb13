"""Lab 0.1: start here."""

from course.lazy import lazy_exports

_NAMES = {
    ".batch_script": "check_batch_script write_broken_script",
    ".figures": "plot_node plot_supercomputer",
    ".nodes": "cluster machine",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
