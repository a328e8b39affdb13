"""Profilers' traces as tables."""

import lazy_loader

_NAMES = {
    "collectives": "NCCL",
    "intervals": "Intervals intervals_of merge_intervals overlap_s subtract_intervals",
    "reader": "assemble Row timed TraceError",
    "tables": "by_kernel by_operator computing idle LAYOUT layout_kernels read steps Trace",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
