"""Find what limits a PyTorch training script, and measure which change helps.

    trainspeed profile -- python train.py --epochs 1
    trainspeed compare "python a.py" "python b.py"
    trainspeed memory mymodule:make --batch 32 64 128 --gpu 40GiB

In a notebook or a script: `Watch`, `compare` and `predict_memory`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
<<<<<<< HEAD
# Each with its module, which is imported when it is used: some import torch.
_EXPORTS = {"Watch": "watch", "compare": "comparison"}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
=======
# Imported when first used: they import torch.
_NAMES = {"Watch": "watch", "profile": "profile", "compare": "comparison"}


def __getattr__(name: str):
    if name in _NAMES:
        return getattr(import_module(f"trainspeed.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'trainspeed' has no attribute {name!r}")
>>>>>>> w-compare
