"""FSDP2, which shards a network over several GPUs."""

from course.lazy import lazy_exports

_NAMES = {
    ".configs": "sharded_config",
    ".by_hand": "layer_timelines",
    ".formulas": "communication_volume zero_memory",
    ".figures": "plot_comparison plot_rank_memory",
    ".measurements": (
        "compare_with_ddp count_collectives hosts_table losses_table measured_memory "
        "sharding_runs step_parts"
    ),
    ".prediction": "predict_rank_memory",
    "course.checks.lab_configs": "SMALL_VIT_SETTINGS",
    "course.analysis.traces.tables": "read_run",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
