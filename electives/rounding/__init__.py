"""Elective N: rounding, master weights and fp8."""

import lazy_loader

_NAMES = {
    "figures": "plot_fp8_speedup plot_weights",
    "measurements": "load_products load_training_steps",
    "updates": "accumulate_updates train_in_bf16",
    "weight_memory": "mlp_peaks",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
