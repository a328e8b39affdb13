"""FSDP2, which shards a network over several GPUs."""

import lazy_loader

_NAMES = {
    "configs": "sharded_config",
    "by_hand": "layer_timelines",
    "formulas": "communication_volume zero_memory",
    "figures": "plot_comparison plot_rank_memory",
    "measurements": (
        "compare_with_ddp count_collectives hosts_table losses_table measured_memory "
        "sharding_runs step_parts"
    ),
    "prediction": "predict_rank_memory",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
