"""Profilers' traces as tables and figures."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_tensor_cores plot_time_by plot_timeline",
    ".tables": "by_kernel by_operator copies idle read read_run",
    ".tensor_cores.report": "kernels_of_run tensor_core_report tensor_core_summary",
    ".tensor_cores.rules": "classify",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
