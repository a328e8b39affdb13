"""The profiler and Tensor Cores."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_tensor_cores plot_time_by plot_timeline",
    ".limits": "evidence recorded_fixes unknown_traces",
    ".memory": "plot_memory recorded_memory",
    ".nsight": "read_ncu read_nsys",
    ".roofline_figures": "plot_roofline",
    "course.analysis.tensor_cores.rules": "classify",
    "course.analysis.tensor_cores": "kernels_of_run tensor_core_report tensor_core_summary",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
