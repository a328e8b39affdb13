"""A tiny training script, as tests of commands run it. It knows nothing of trainspeed."""

import argparse
import time

import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--sleep-ms", type=float, default=5)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--ranks", action="store_true")
cfg = parser.parse_args()

torch.set_num_threads(1)
rank = 0
if cfg.ranks:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(
    TensorDataset(torch.ones(40 * cfg.batch, 8)), cfg.batch, num_workers=cfg.workers
)
steps = 0
log = open(f"{cfg.name}{rank}.txt", "a", buffering=1) if cfg.name else None  # noqa: SIM115
while steps < cfg.steps:
    for (batch,) in loader:
        begin = time.monotonic()
        time.sleep(cfg.sleep_ms / 1000)
        model(batch).square().mean().backward()
        if cfg.ranks:
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
        end = time.monotonic()  # the next line waits for a turn
        optimizer.step()
        optimizer.zero_grad()
        if log:
            log.write(f"{begin} {end}\n")
        steps += 1
        if steps >= cfg.steps:
            break
