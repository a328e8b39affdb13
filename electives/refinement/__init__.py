"""Elective S: iterative refinement, fp64 results from fp16 factors."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_convergence plot_gpu_speedup",
    ".measurements": "load_measurements",
    ".solvers": "ROUNDOFF factor random_matrix refine solve_by_condition",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
