"""Run one of two ranks without a job, and save its results.

python of_two_ranks.py FOLDER RANK
"""

import sys
from pathlib import Path

import torch
from narrow import Narrow
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course.training import stochastic_depth, sync_batchnorm

IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 + 1
SHARES = (slice(0, 5), slice(5, 12))  # unequal, as an epoch's last batch may be


def compute_all(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    torch.save(_batchnorm_on_shares(rank), folder / f"batchnorm-{rank}.pt")
    torch.save(_unused_weights(rank), folder / f"unused-{rank}.pt")
    distributed.destroy_process_group()


def layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.BatchNorm2d(6))
    for layer in (model[1], model[3]):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return model


def _batchnorm_on_shares(rank: int) -> tuple:
    model = sync_batchnorm.convert(layers())
    images = IMAGES[SHARES[rank]].clone().requires_grad_()
    for _ in range(2):  # the second one finds running statistics that have moved
        output = model(images)
    output.square().sum().backward()
    gradients = [weight.grad for weight in model.parameters()]
    for gradient in gradients:
        distributed.all_reduce(gradient)
    return output.detach(), images.grad, gradients, model.state_dict()


def _trains(model: nn.Module, rank: int, **options: bool) -> str:
    """Train three steps under DDP; return the error that ended them, or ""."""
    model = DDP(model, **options)
    try:
        for step in range(3):
            torch.manual_seed(10 * step + rank)  # each rank draws different random numbers
            model(IMAGES[SHARES[rank]]).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def _unused_weights(rank: int) -> list[str]:
    torch.manual_seed(0)
    return [
        _trains(stochastic_depth.Heads(Narrow(4)), rank),
        _trains(stochastic_depth.Heads(Narrow(4)), rank, find_unused_parameters=True),
        _trains(stochastic_depth.masked_depth(Narrow(4), 0.5), rank),
    ]


if __name__ == "__main__":
    compute_all(Path(sys.argv[1]), int(sys.argv[2]))
