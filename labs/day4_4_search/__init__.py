"""Lab 4.4: searching without wasting a cluster."""

from course.lazy import lazy_exports

_NAMES = {
    ".chance": "best_by_chance best_of check_best_of",
    ".configs": "search_config",
    ".figures": "plot_by_field plot_chance plot_curves plot_looked plot_progress plot_tested",
    ".replay": "Recorded points replayed",
    ".studies": "Search search",
    ".tables": "costs epochs importance progress tested trials",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
