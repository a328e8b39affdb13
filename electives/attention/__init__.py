"""Elective A: attention from tiles, in PyTorch and in Triton."""

import lazy_loader

_NAMES = {
    "figures": "plot_blocks plot_masks plot_memory plot_times",
    "measurements": "fastest load_measurements time_on_gpu",
    "memory": "compare_with_process predict_by_context",
    "solutions": "attend",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
