"""A lab's helpers: its notebook imports them by `from labs import NAME as lab`."""

from course.lazy import lazy_exports

# For each module the names that the notebook uses; they are imported on first use.
_NAMES = {
    ".figures": "plot_doubles",
    ".helpers": "double",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
