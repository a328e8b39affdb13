"""Elective S: iterative refinement, fp64 results from fp16 factors."""

import lazy_loader

_NAMES = {
    "figures": "plot_convergence plot_gpu_speedup",
    "measurements": "load_measurements",
    "solvers": "ROUNDOFF factor random_matrix refine solve_by_condition",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
