"""Memory layout and channels_last."""

import lazy_loader

_NAMES = {
    "figures": ("plot_busy_multiprocessors plot_convolution_times plot_strides plot_time_by_part"),
    "lost_layout": "planted",
    "strides": "conversions operator_layouts time_by_part",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
