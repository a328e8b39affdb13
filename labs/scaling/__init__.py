"""Scaling to many GPUs."""

from course.lazy import lazy_exports

_NAMES = {
    ".efficiency": "efficiency_table node_with_prediction published_efficiencies scaling_runs",
    ".figures": "plot_extrapolation plot_links plot_overlap plot_scaling",
    ".model": "Link bucket_timeline ddp_buckets predict_scaling",
    "course.analysis.links": "measure_link recorded_links",
    ".techniques": "TECHNIQUES compare_steps mean_step_s network_run predict_efficiency "
    "predict_hosts technique_runs train_on",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
