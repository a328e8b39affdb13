"""Memory layout and channels_last."""

import lazy_loader

_NAMES = {
    "convolution": "convolution_times recorded_convolution",
    "figures": "plot_convolution_times plot_strides plot_time_by_part",
    "hierarchy": "plot_gpu",
    "lost_layout": "planted",
    "strides": "addresses conversions ms_by_channels operator_layouts time_by_part",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
