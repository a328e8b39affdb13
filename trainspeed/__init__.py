"""Find what limits a PyTorch training script, and measure which change helps.

    trainspeed profile -- python train.py --epochs 1
    trainspeed compare "python a.py" "python b.py"
    trainspeed memory mymodule:make --batch 32 64 128 --gpu 40GiB

In a notebook or a script: `Watch`, `compare` and `predict_memory`.
"""

from importlib import import_module

__version__ = "0.1.0"
# Imported when first used: they import torch.
_NAMES = {"Watch": "watch", "profile": "profile", "compare": "comparison"}


def __getattr__(name: str):
    if name in _NAMES:
        return getattr(import_module(f"trainspeed.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'trainspeed' has no attribute {name!r}")
