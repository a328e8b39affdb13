"""Lab 1.5: the profiler and Tensor Cores."""

import os

from course.lazy import lazy_exports

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or a profiler prints its start and stop
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
