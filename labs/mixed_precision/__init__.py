"""Mixed precision, and what 16 bits cost."""

import lazy_loader

_NAMES = {
    "figures": "plot_bits plot_digit_accuracy plot_gradient_histogram plot_step",
    "learning": "digit_accuracy",
    "rounding": "operator_types trained_gradients",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
