"""Lab 3.1: where the images lie, and who decodes them."""

from course.lazy import lazy_exports

_NAMES = {
    ".disk": "measure_disk opening",
    ".figures": "plot_costs plot_disk plot_fed plot_losses plot_orders",
    ".lab": "FORMAT_SETTINGS",
    ".readers": "members reading",
    ".shuffling": "orders",
    ".stages": "costs",
    "course.data.formats.convert": "convert index",
    "course.data.formats.shards": "paths",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
