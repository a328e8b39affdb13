"""Elective N: rounding, master weights and fp8."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_fp8_speedup plot_weights",
    ".measurements": "load_products load_training_steps",
    ".updates": "accumulate_updates train_in_bf16",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
