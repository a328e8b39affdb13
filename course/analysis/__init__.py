"""Measurements that several labs share: for labs that explain where the time goes.

`traces` reads profilers' traces; `tensor_cores`, `roofline`, `communication` and `gpus` compare
them with what the hardware can do.
"""

import lazy_loader

_NAMES = {
    "fresh_compiler": "fresh_compiler",
    "links": "measure_link recorded_links",
    "ranks": "on_ranks",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["communication", "gpus", "roofline", "tensor_cores", "timing", "traces"],
    {module: names.split() for module, names in _NAMES.items()},
)
