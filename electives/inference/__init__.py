"""Elective I: inference, with one image or many."""

import lazy_loader

_NAMES = {
    "export": (
        "OnnxSession compare_formats export_program has_onnx installed_versions "
        "time_with_tensorrt write_int8_onnx write_onnx"
    ),
    "figures": ("plot_accuracy_by_bits plot_latency plot_products plot_service plot_speedups"),
    "int8": "accuracy_by_bits accuracy_by_calibration quantize",
    "latency": "find_knee latency_curve load_measurements load_products time_ladder",
    "serving": "latency_by_rate policy_table random_arrivals step_time",
    "training": "accuracy_without_eval load_crops top1 train_network",
    "variants": "LADDER Variant count_batchnorms fold_batchnorms",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
