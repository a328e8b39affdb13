"""Elective B: a benchmark of three networks."""

from course.lazy import lazy_exports

_NAMES = {
    ".cost": "network_costs performance_limits",
    ".figures": (
        "plot_busy plot_costs plot_ladder plot_limit_shares "
        "plot_scaling plot_speedups plot_time_by_kind traced_steps"
    ),
    ".local": "benchmark_here create_step",
    ".measurements": (
        "images_per_step inference_speedups layout_speedups load_measurements "
        "published_speeds scaling_efficiency speeds_with_published speedups tensor_core_gains"
    ),
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
