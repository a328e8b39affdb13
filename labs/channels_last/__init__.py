"""Memory layout and channels_last."""

from course.lazy import lazy_exports

_NAMES = {
    ".convolution": "convolution_times recorded_convolution",
    ".figures": "plot_convolution_times plot_strides plot_time_by_part",
    ".hierarchy": "plot_gpu",
    ".lost_layout": "planted",
    ".strides": "addresses conversions ms_by_channels operator_layouts time_by_part",
    "course.runs.recordings": "part recorded_table",
    "course.analysis.traces.tables": "layout_kernels",
    "course.training.evidence.operators": "layout",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
