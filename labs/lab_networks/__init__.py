"""Elective B: a benchmark of three networks."""

from course.lazy import lazy_exports

_NAMES = {
    ".cost": "bounds networks operators",
    ".figures": (
        "plot_at_work plot_beside plot_costs plot_fed plot_ladder plot_reached plot_samples "
        "plot_scaled plot_where traced"
    ),
    ".local": "measured_here stepping",
    ".measurements": "beside from_files gains inference layouts recorded scaling",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
