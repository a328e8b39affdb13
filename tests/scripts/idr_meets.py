"""What torchrun starts: all ranks learn the sum of rank + 1. DDP, left out, would import Dynamo."""

import sys

import idr_torch
import torch
from torch import distributed

idr_torch.init_process_group(backend="gloo", init_method="env://")
total = torch.tensor([idr_torch.rank + 1.0])
distributed.all_reduce(total)
sys.stdout.write(f"rank {idr_torch.rank} of {idr_torch.world_size}: {total.item():g}\n")
sys.stdout.flush()
distributed.barrier()  # or one that is through ends the other, which has not said its own
distributed.destroy_process_group()
