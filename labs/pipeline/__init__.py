"""Pipeline parallelism."""

import lazy_loader

_NAMES = {
    "configs": "pipeline_config working_script",
    "figures": "plot_cuts plot_order plot_run plot_steps",
    "measurements": "compare_pipelines",
    "schedules": (
        "bubble_share compare_idle_shares ideal_step idle_share max_in_flight measured_order "
        "measured_step "
        "schedule_order simulate"
    ),
    "sizes": "rank_memory",
    "stages": "balanced_cut measure_pieces",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
