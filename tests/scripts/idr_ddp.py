"""A training script like those of DLO-JZ notebooks: idr_torch sets rank, size and address.

Each rank has a small network under DDP and its share of the images, for three steps.
"""

import os
import sys

import idr_torch
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

steps = int(sys.argv[sys.argv.index("--steps") + 1])
torch.set_num_threads(1)
idr_torch.init_process_group(backend="gloo", init_method="env://")
torch.manual_seed(0)
network = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
images = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
sampler = DistributedSampler(images, num_replicas=idr_torch.world_size, rank=idr_torch.rank)
batches = iter(DataLoader(images, batch_size=2, sampler=sampler))
for _ in range(steps):
    inputs, labels = next(batches)
    loss = nn.functional.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = sum(float(weight.detach().double().sum()) for weight in network.parameters())
everyone = [None] * idr_torch.world_size
distributed.all_gather_object(everyone, round(weights, 9))
where = f"{idr_torch.rank} of {idr_torch.world_size}, {idr_torch.local_rank} on a node"
met = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
sys.stdout.write(f"rank {where}, met at {met}, {len(set(everyone))} kind of weights\n")
sys.stdout.flush()
distributed.barrier()  # otherwise a rank that has finished ends the others before they print
distributed.destroy_process_group()
