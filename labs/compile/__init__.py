"""Graphs, kernels, recompilations and caches of torch.compile."""

import lazy_loader

_NAMES = {
    "compiler": "BlockEnd kernels",
    "figures": "plot_traffic plot_trips",
    "measurements": "compile_s modes_table recorded_tail",
    "verify": "find_breaks time_forward",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
