"""FSDP2, which shards a network over several GPUs."""

import lazy_loader

_NAMES = {
    "by_hand": "layer_timelines",
    "figures": "plot_comparison plot_units",
    "measurements": "compare_with_ddp message_times sharding_runs",
    "prediction": "fake_mesh predict_rank_memory",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
