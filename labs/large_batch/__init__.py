"""Learning rates and optimizers for large batches."""

import lazy_loader

_NAMES = {
    "configs": "crops_config",
    "figures": "plot_grid plot_rate_searches plot_update_sizes plot_updates_needed",
    "measurements": "crop_batches final_epochs load_network",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
