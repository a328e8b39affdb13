"""Find what limits a PyTorch training script, and measure which change helps.

    trainspeed profile -- python train.py --epochs 1
    trainspeed compare "python a.py" "python b.py"
    trainspeed memory mymodule:make --batch 32 64 128 --gpu 40GiB

In a notebook or a script: `Watch`, `compare` and `predict_memory`.
"""

__version__ = "0.1.0"
