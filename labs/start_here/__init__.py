"""Start here."""

from course.lazy import lazy_exports

_NAMES = {
    ".batch_script": "check_batch_script write_broken_script",
    ".figures": "plot_node plot_supercomputer",
    ".nodes": "cluster machine",
    ".nvidia_smi": "gpu_processes gpu_status gpu_usage",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
