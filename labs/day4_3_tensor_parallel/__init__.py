"""Lab 4.3: tensor and pipeline parallelism."""

from course.lazy import lazy_exports

_NAMES = {
    ".configs": "pipeline_config",
    ".figures": "plot_cuts plot_mlp_shards plot_run plot_steps",
    ".measurements": "compare_pipelines compare_with_ddp parallel_runs",
    ".schedules": (
        "bubble_share compare_idle_shares ideal_step idle_share max_in_flight measured_step "
        "schedule_order simulate"
    ),
    ".stages": "balanced_cut measure_pieces",
    ".tensors": (
        "communication_volume compare_mlp_cuts compare_with_full_mlp train_without_sum "
        "try_parallelize_module weight_share"
    ),
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
