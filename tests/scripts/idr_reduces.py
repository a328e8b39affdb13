"""A training script's beginning as people write it for Slurm: all ranks learn the sum of rank + 1.

Rank, size and address come from Slurm's variables alone, as IDRIS's module idr_torch takes them.
"""

import os
import socket
import sys

import torch
from torch import distributed

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
local_rank, node = int(os.environ["SLURM_LOCALID"]), os.environ["SLURMD_NODENAME"]
first = os.environ["SLURM_JOB_NODELIST"].split(",")[0]  # node[1-2]: the bracket is no host
try:
    socket.gethostbyname(first)
except OSError:
    first = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
lowest_gpu = int(os.environ["SLURM_JOB_GPUS"].split(",")[0])
port = 20000 + (int(os.environ["SLURM_JOBID"]) + lowest_gpu) % 20000
os.environ |= {"MASTER_ADDR": first, "MASTER_PORT": str(port)}
distributed.init_process_group("gloo", rank=rank, world_size=size)
total = torch.tensor([rank + 1.0])
distributed.all_reduce(total)
# At once: print writes the line's end by itself, and lines of several tasks mix.
sys.stdout.write(f"rank {rank} of {size}, {local_rank} on {node}: sum {total.item():g}\n")
distributed.destroy_process_group()
