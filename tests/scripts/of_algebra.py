"""One of two processes that train by the algebra under DDP, in float64, and tell how far off.

python of_algebra.py FOLDER RANK
"""

import copy
import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models.resnet import Bottleneck, ResNet

from course.training.algebra import plain

SHARE = 4  # images of a rank


def network() -> ResNet:
    """A bottleneck of each kind: a shortcut of stride 1, none, and one of stride 2."""
    torch.manual_seed(0)
    net = ResNet(Bottleneck, [2, 1, 1, 1])
    net.layer3, net.layer4, net.fc = nn.Sequential(), nn.Sequential(), nn.Linear(512, 10)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.3, 0.3)
    return net


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """That of both ranks."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2 * SHARE, 3, 32, 32, generator=generator)
    return images, torch.arange(2 * SHARE)


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Of each weight, in order."""
    cross_entropy(model(images), labels).backward()
    return [weight.grad for weight in model.parameters()]


def main(folder: Path, rank: int) -> None:
    """Writes rank-R.json: the largest difference from autograd, and a sum that ranks compare."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    net, (images, labels) = network().double(), batch()
    shares = [slice(0, SHARE), slice(SHARE, 2 * SHARE)]
    wanted = [
        gradients(copy.deepcopy(net), images[share].double(), labels[share]) for share in shares
    ]
    model = DDP(plain.convert(net), gradient_as_bucket_view=True)
    found = gradients(model, images[shares[rank]].double(), labels[shares[rank]])
    off = [(each - (a + b) / 2).abs().max().item() for each, a, b in zip(found, *wanted)]
    told = {"off": max(off), "sum": sum(each.double().abs().sum().item() for each in found)}
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
