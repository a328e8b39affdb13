"""What a training does whose ranks share out MLPs, and forget the sum in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course.runs.run import PROJECT
from labs.day4_2_fsdp.processes import on_ranks
from labs.day4_3_model_parallel.comparison import loaded

if TYPE_CHECKING:
    import pandas as pd

IMAGES, WIDTH, CLASSES, BLOCKS, STEPS = 64, 32, 8, 4, 12
SOLUTION = PROJECT / "solutions" / "train_parallel.py"


class Mlp(nn.Module):
    """Two layers, by timm's names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(features)))


class Block(nn.Module):
    """What a transformer has beside attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.mlp(self.norm(features))


def forgotten(ranks: int = 2) -> pd.DataFrame:
    """The loss of each step of a small network: whole, shared out, and without the sum in backward.

    Columns: whole (one process), shared (the solution's SharedMlp on real ranks), without (the
    same, whose Entry hands on what its own rank knows).
    """
    import pandas as pd

    found, *_ = on_ranks(_train_all, ranks)
    return pd.DataFrame(found).rename_axis("step")


def _train_all(rank: int, ranks: int) -> dict[str, list[float]]:
    script, mates = loaded(str(SOLUTION)), init_device_mesh("cpu", (ranks,))
    found = {"whole": _trained(_network())}
    found["shared"] = _trained(_shared(script.SharedMlp, mates))
    script.Entry.backward = staticmethod(lambda ctx, gradient: (gradient, None))
    return found | {"without": _trained(_shared(script.SharedMlp, mates))}


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(BLOCKS)]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def _shared(kind: type, mates: torch.distributed.DeviceMesh) -> nn.Sequential:
    network = _network()
    for block in network[1:-1]:
        block.mlp = kind(block.mlp, mates)
    return network


def _trained(network: nn.Sequential) -> list[float]:
    """The loss of each step, on images of as many kinds as there are classes."""
    random = torch.Generator().manual_seed(1)
    labels = torch.arange(IMAGES) % CLASSES
    kinds = torch.randn(CLASSES, WIDTH, generator=random)
    images = kinds[labels] + torch.randn(IMAGES, WIDTH, generator=random)
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=1e-3), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
