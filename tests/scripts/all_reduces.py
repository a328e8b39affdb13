"""A job of several processes that all-reduce rank + 1."""

import os

import psutil
import torch
from torch import distributed

from course.training.recorder import recording

with recording() as run:
    distributed.init_process_group("gloo")
    total = torch.tensor([distributed.get_rank() + 1.0])
    distributed.all_reduce(total)
    run.set(last_loss=total.item())
    port = os.environ["MASTER_PORT"]
    print(f"rank {run.rank} of {run.world_size}: {total.item():g}, met at port {port}")
    print(f"NCCL gives up after {os.environ['TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC']} ms")
    parent = psutil.Process().parent()  # the supervisor, whose other children serve this rank
    for process in (parent, *parent.children()):
        for connection in process.net_connections("inet"):
            if connection.status == "LISTEN":
                print(f"listens at {connection.laddr.ip}")
    distributed.barrier()  # until both have checked
    distributed.destroy_process_group()
