"""Checkpoints and reproducibility."""

import lazy_loader

_NAMES = {
    "figures": "plot_checkpoint_interval plot_long_run plot_restart plot_step_times",
    "measurements": (
        "checkpoint_config compare_losses compare_speed lost_share saving_costs stop_after "
        "wait_for_steps"
    ),
    "preemption": "preemption_settings recorded_signals",
    "reproducibility": ("compare_crops compare_repeats compare_sums"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
