"""Lab 1.2: half the bits, and what they cost."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": (
        "plot_bits plot_gradient_histogram plot_learned plot_range_and_precision plot_scale_course"
    ),
    ".learning": "learned_digits",
    ".rounding": (
        "DTYPES formats gradient_magnitudes lost_share lost_updates operator_types "
        "scaler_course started_training to_tf32"
    ),
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
