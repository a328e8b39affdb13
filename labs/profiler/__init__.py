"""What limits a step."""

import lazy_loader

_NAMES = {
    "figures": "plot_limits_tree plot_time_by plot_timeline",
    "limits": "evidence recorded_fixes unknown_traces",
    "nsight": "read_ncu read_nsys",
    "roofline_figures": "plot_roofline",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
