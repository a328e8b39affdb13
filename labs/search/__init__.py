"""Hyperparameter search with grids, random search, TPE and successive halving."""

import lazy_loader

_NAMES = {
    "configs": "search_config",
    "figures": "plot_by_field plot_curves plot_early_ranking plot_holdout plot_sampled_points",
    "halving": "Replay compare_with_random rank_correlation",
    "replay": "AccuracyGrid compare_samplers grid_runs simulate_search",
    "studies": "Search search",
    "tables": "cost_table epochs_table field_importance holdout_table trials_table",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
