"""Elective N: half precision for science."""

from course.lazy import lazy_exports

_NAMES = {
    ".figures": "plot_convergence plot_convergence_table plot_gpu_speedup plot_weights",
    ".measurements": "load_measurements",
    ".solvers": "ROUNDOFF factor random_matrix refine solve_by_condition",
    ".updates": "accumulate_updates train_in_bf16",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
