"""Mixed precision, and what 16 bits cost."""

import lazy_loader

_NAMES = {
    "figures": (
        "plot_bits plot_digit_accuracy plot_gradient_histogram plot_loss_scale "
        "plot_range_and_precision"
    ),
    "learning": "digit_accuracy loss_scale_history",
    "weight_memory": "mlp_peaks",
    "rounding": (
        "DTYPES formats fp16_shares gradient_magnitudes lost_updates operator_types "
        "round_to_tf32 train_briefly"
    ),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
