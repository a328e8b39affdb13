"""Lab 4.6: checkpoints, reproducibility, experiment tracking and energy."""

from course.lazy import lazy_exports

_NAMES = {
    ".advice": "habits",
    ".energy": "HOST PUE carbon carbon_by_grid joules",
    ".exports": "export",
    ".figures": (
        "plot_checkpoint_interval plot_grams plot_restart plot_run_comparison plot_step_times"
    ),
    ".measurements": (
        "checkpoint_config compare_losses compare_speed lost_share saving_costs stop_after"
    ),
    ".reproducibility": ("compare_crops compare_machines compare_repeats compare_sums"),
    ".tracking": "explained_shares runs_table select_by_tags",
    ".trackers": "tags",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
