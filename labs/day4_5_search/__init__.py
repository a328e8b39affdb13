"""Lab 4.5: hyperparameter search with grids, random search, TPE and pruning."""

from course.lazy import lazy_exports

_NAMES = {
    ".chance": "best_of check_best_of",
    ".configs": "search_config",
    ".figures": (
        "plot_by_field plot_chance plot_curves plot_holdout plot_progress plot_sampled_points"
    ),
    ".replay": "AccuracyGrid compare_samplers simulate_search",
    ".studies": "Search search",
    ".tables": "cost_table epochs_table field_importance holdout_table progress trials_table",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
