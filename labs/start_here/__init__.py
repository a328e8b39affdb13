"""Start here."""

import lazy_loader

_NAMES = {
    "batch_script": "check_batch_script write_broken_script",
    "figures": "plot_backfill plot_node plot_supercomputer",
    "nvidia_smi": "gpu_status",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["doctor"], {module: names.split() for module, names in _NAMES.items()}
)
