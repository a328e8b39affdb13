"""Lab 3.3: many images an update, and still learning."""

from course.lazy import lazy_exports

_NAMES = {
    ".configs": "crops_config rate_search_config",
    ".figures": (
        "plot_by_optimizer plot_grid plot_schedules plot_search plot_update_sizes plot_useful"
    ),
    ".gradient_noise": "Noise noise",
    ".trainings": (
        "along batches best critical ends learned network over_seeds search state_gib update_sizes"
    ),
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
