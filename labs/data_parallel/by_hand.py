"""Train a small network with DDP, without the course: each process is one rank.

The lab starts it with torchrun and with srun.
"""

import faulthandler
import os
import signal
import socket
import time
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

# Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The timeout is that of each wait for a rank.
timeout = timedelta(seconds=int(os.environ.get("TIMEOUT_S", "10")))
distributed.init_process_group("gloo", timeout=timeout)
rank, local_rank = distributed.get_rank(), os.environ["LOCAL_RANK"]
faulthandler.register(signal.SIGUSR1)  # kill -USR1 PROCESS prints the Python stack
# With GPUs: torch.cuda.set_device(int(local_rank))


def say(text: str) -> None:
    """Print a line in one piece, so that lines of two ranks do not mix."""
    print(f"rank {rank}{text}\n", end="", flush=True)


say(f" is local rank {local_rank} of {socket.gethostname()}, process {os.getpid()}")
torch.manual_seed(rank)  # different images on each rank
model = DDP(nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    images = torch.randn(32, 10)
    loss = (model(images) - images.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(f", step {step}: loss {loss:.3f}, sum of weights {model.module.weight.sum():.4f}")
    time.sleep(0.5)
distributed.destroy_process_group()
