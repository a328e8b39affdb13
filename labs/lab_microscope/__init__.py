"""Elective M: which kernels run on Tensor Cores."""

from course.lazy import lazy_exports

_NAMES = {
    ".cases": "Convolution Product",
    ".figures": (
        "plot_channels plot_far_map plot_largest_rates plot_near_map plot_odd_sides plot_waves"
    ),
    ".kernel_names": "classify_examples example_kernels",
    ".measurements": "map_this_machine measure_gpu time_cases",
    ".records": (
        "channel_sweep counters_by_load load_measurements measured_ceilings odd_side_rates"
    ),
    ".steps": "convolution_in_steps",
    ".tables": "generations listing",
    "labs.day1_5_profiler.roofline_figures": "plot_roofline",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
