"""Choosing a GPU by memory, speed, energy and price."""

from course.lazy import lazy_exports

_NAMES = {
    ".estimates": "compare_costs compare_estimate estimate_speeds",
    ".figures": "plot_energy",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
