"""Tensor parallelism."""

import lazy_loader

_NAMES = {
    "figures": "plot_mlp_shards plot_strips",
    "measurements": "compare_with_ddp parallel_runs",
    "tensors": "communication_volume compare_with_full_mlp train_without_sum",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
