"""Slurm in a box: a real Slurm of two nodes with fake GPUs, on one Linux machine.

slurm_box.up()                                                 # until both nodes are idle
subprocess.run(["sinfo"], env=os.environ | slurm_box.environment())
slurm_box.down()                                               # nothing is left running
"""

from importlib import import_module
from typing import Any

from slurm_box.cluster import ClusterError, environment, folder

__all__ = ["ClusterError", "down", "environment", "folder", "status", "up"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in ("down", "status", "up"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("slurm_box.control"), name)  # programs that only ask need no more
