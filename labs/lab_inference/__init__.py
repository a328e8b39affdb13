"""Elective I: a network answers."""

from course.lazy import lazy_exports

_NAMES = {
    ".export": (
        "Session compared exported has_onnx installed operators tensorrt to_int8_file to_onnx"
    ),
    ".figures": "plot_bits plot_channels plot_knees plot_ladder",
    ".fold": "folded norms",
    ".int8": "by_bits by_calibration quantized",
    ".latency_ladder": "ladder",
    ".latency": "curve knee waiting",
    ".measurements": "recorded",
    ".modes": "forgotten",
    ".training": "images_of top1 train",
    ".variants": "LADDER Way",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
