"""Micro-batches, checkpointing and offloading."""

import lazy_loader

_NAMES = {
    "figures": "plot_memory_parts plot_micro_batches plot_pareto_front plot_timelines",
    "lab": "memory_config",
    "timeline": "memory_timeline",
    "measurements": "memory_strategies on_pareto_front",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
