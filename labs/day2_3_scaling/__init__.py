"""Lab 2.3: scaling to many GPUs."""

from course.lazy import lazy_exports

_NAMES = {
    ".efficiency": "efficiency_table node_with_prediction published_efficiencies scaling_runs",
    ".figures": "plot_extrapolation plot_messages plot_overlap plot_scaling",
    ".model": "Link bucket_timeline ddp_buckets fit_link predict_scaling",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
