"""Lab 1.5: the profiler and Tensor Cores."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_tensor_cores plot_time_by plot_timeline",
    ".nsight": "read_ncu read_nsys",
    ".roofline_figures": "plot_roofline",
    "course.analysis.tensor_cores.rules": "classify",
    ".verdicts": "judge_kernels score summarize_verdicts",
    "course.analysis.tensor_cores": "kernels_of_run tensor_core_report tensor_core_summary",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
