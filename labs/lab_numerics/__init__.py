"""Elective N: half precision for science."""

from course.lazy import lazy_exports

_NAMES = {
    ".factors": "ROUNDOFF factor matrix_of",
    ".figures": "plot_border plot_on_gpu plot_residuals plot_ways",
    ".measurements": "recorded",
    ".solvers": "backward_error convergence correct refine refine_by_gmres",
    ".updates": "add_carried adding by_chance learned_in_bf16",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
