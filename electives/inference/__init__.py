"""Elective I: inference, with one image or many."""

import lazy_loader

_NAMES = {
    "export": "write_onnx",
    "figures": "plot_latency plot_service plot_speedups",
    "int8": "quantize",
    "latency": "load_measurements",
    "training": "load_crops train_network",
    "variants": "LADDER Variant fold_batchnorms",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
