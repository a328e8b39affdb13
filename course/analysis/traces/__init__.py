"""Profilers' traces as tables and figures."""

from course.lazy import lazy_exports

_NAMES = {
    ".tables": "by_kernel by_operator copies idle of_run read read_ncu read_nsys",
    ".tensor_cores.report": "kernels_of_run score tensor_core_report tensor_core_summary",
    ".tensor_cores.rules": "classify",
    ".figures": "plot_tensor_cores plot_time_by plot_timeline",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES, {"truth": ".tensor_cores.truth"})
