"""Measurements that several labs share: for labs that explain where the time goes.

`read_trace` reads a profiler's trace; `roofline` and `communication` compare runs with what the
hardware can do. What works on any script is in `trainspeed`.
"""

import lazy_loader

_NAMES = {
    "fresh_compiler": "fresh_compiler",
    "links": "measure_link recorded_links",
    "long_runs": "plan_training",
    "ranks": "on_ranks",
    "run_traces": "read_trace",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["communication", "roofline"],
    {module: names.split() for module, names in _NAMES.items()},
)
