"""A job of several processes: each gives its rank + 1, and all learn the sum."""

import os

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
    distributed.destroy_process_group()
