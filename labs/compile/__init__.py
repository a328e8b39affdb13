"""Graphs, kernels, recompilations and caches of torch.compile."""

import lazy_loader

_NAMES = {
    "compiler": (
        "BlockEnd break_even_steps capture_graph compile_shapes find_breaks kernels measure_cache "
        "time_versions"
    ),
    "figures": "plot_break_even plot_losses plot_modes plot_shapes plot_traffic",
    "measurements": "compile_s modes_table recorded_kernel recorded_part",
    "verify": "make_model original_forward",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
