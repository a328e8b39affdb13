"""Lab 4.5: stopped, repeated, found again."""

from course.lazy import lazy_exports

_NAMES = {
    ".emissions": "GRIDS HOST PUE by_grid carbon",
    ".energy": "all_recorded bill joules",
    ".figures": "plot_best_distance plot_steps plot_stopped",
    ".logging_habits": "habits what_to_log",
    ".interruption": "small stop",
    ".reproducibility": "crops machines repeats sums threads",
    ".run_figures": "plot_grams plot_together",
    ".run_tables": "differing explained tagged together",
    ".saving": "costs gained joined lost",
    "course.runs.trackers": "tags",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
