"""Elective M: which kernels run on Tensor Cores."""

import lazy_loader

_NAMES = {
    "cases": "Convolution Product",
    "figures": "plot_far_map plot_near_map plot_tensor_cores",
    "measurements": "measure_gpu time_cases",
    "permission": "counter_permission",
    "records": "counters_by_case load_measurements",
    "sparsity": "pruned_accuracy sparse_speeds",
    "wmma": "library_instructions run_wmma wmma_source",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
