"""Hyperparameter search with grids, random search, TPE and successive halving."""

import lazy_loader

_NAMES = {
    "configs": "search_config",
    "figures": "plot_curves plot_holdout plot_sampled_points plot_timelines",
    "halving": "Replay",
    "replay": "AccuracyGrid compare_samplers grid_runs",
    "studies": "Search search",
    "tables": "epochs_table trials_table",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
