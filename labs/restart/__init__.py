"""Checkpoints and restarts."""

import lazy_loader

_NAMES = {
    "figures": "plot_checkpoint_interval plot_long_run plot_restart",
    "measurements": "SMALL_IMAGENET compare_losses lost_share saving_costs wait_for_steps",
    "preemption": "preemption_settings recorded_signals",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
