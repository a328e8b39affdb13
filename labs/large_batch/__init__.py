"""Learning rates and optimizers for large batches."""

import lazy_loader

_NAMES = {
    "configs": "crops_config rate_search_config",
    "figures": (
        "plot_by_optimizer plot_grid plot_rate_searches plot_schedules plot_update_sizes "
        "plot_updates_needed"
    ),
    "measurements": (
        "crop_batches epochs_table estimate_noise final_epochs fit_critical_batch load_network "
        "optimizer_state_gib read_rate_search relative_update_sizes select_by_rule select_repeated"
    ),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
