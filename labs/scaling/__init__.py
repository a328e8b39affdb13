"""Scaling to many GPUs."""

import lazy_loader

_NAMES = {
    "efficiency": "efficiency_table node_with_prediction published_efficiencies scaling_runs",
    "figures": "plot_extrapolation plot_links plot_overlap plot_scaling",
    "model": "Link bucket_timeline ddp_buckets predict_scaling",
    "techniques": "TECHNIQUES compare_steps mean_step_s network_run predict_efficiency "
    "predict_hosts technique_runs train_on",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
