"""Data parallelism on several GPUs."""

import lazy_loader

_NAMES = {
    "figures": "plot_ddp",
    "lab": "DDP_FULL_SIZE DDP_SETTINGS",
    "terminal": "run_command",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
