"""Slurm in a box: a real Slurm of two nodes with fake GPUs, on one Linux machine.

slurm_box.up()                                                 # until both nodes are idle
subprocess.run(["sinfo"], env=os.environ | slurm_box.environment())
slurm_box.down()                                               # nothing is left running
"""

from slurm_box.cluster import ClusterError, environment, folder
from slurm_box.control import down, status, up

__all__ = ["ClusterError", "down", "environment", "folder", "status", "up"]
__version__ = "0.1.0"
