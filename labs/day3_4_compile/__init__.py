"""Lab 3.4: let the compiler write the kernels."""

from course.lazy import lazy_exports

_NAMES = {
    ".compiler_output": "Tail breaks compilations graph kernels mended paid_after",
    ".exports": "carried inferred",
    ".figures": "plot_losses plot_modes plot_paid plot_shapes plot_traffic",
    ".measurements": "compile_s losses modes recorded_kernel recorded_part shapes",
    "course.checks.lab": "FULL_SIZE",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
