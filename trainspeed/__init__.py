"""Find what limits a PyTorch training script, and measure which change helps.

    trainspeed profile -- python train.py --epochs 1
    trainspeed compare "python a.py" "python b.py"
    trainspeed try -- python train.py
    trainspeed memory mymodule:make --batch 32 64 128 --gpu 40GiB

In a notebook or a script: `Watch`, `compare`, `predict_memory`, `roofline` and `measure_energy`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# Each with its module, which is imported when it is used: some import torch.
_EXPORTS = {
    "Energy": "timing",
    "Prediction": "memory",
    "Roofline": "roofline_model",
    "Watch": "watch",
    "compare": "comparison",
    "largest_batch": "memory",
    "measure_energy": "timing",
    "predict_memory": "memory",
    "roofline": "roofline_model",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
