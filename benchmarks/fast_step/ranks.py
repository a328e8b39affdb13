"""Have all ranks of the algebra the same gradients, and are these the mean of the ranks' own?

    torchrun --nproc-per-node=gpu benchmarks/fast_step/ranks.py
    TRITON_INTERPRET=1 torchrun --nproc-per-node=2 benchmarks/fast_step/ranks.py   # without a GPU

Each piece of gradients is copied when its segment has made it, before it is sent. When backward has
ended, what parameters hold is compared with the mean of these copies. (A second step alike would
not tell: by kernels two of them differ, for numbers are added in any order.) On GPUs the last of
eight steps are by CUDA graphs; elsewhere Triton's interpreter makes two of a small network.
"""

from __future__ import annotations

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models.resnet import Bottleneck, ResNet

from fast_resnet import convert
from fast_resnet.ddp import Shared
from fast_resnet.model import EAGER_STEPS

ON_GPU = torch.cuda.is_available()
BLOCKS = [3, 4, 6, 3] if ON_GPU else [1, 1, 1, 1]
IMAGES, PX, STEPS = (32, 224, 2 * EAGER_STEPS + 2) if ON_GPU else (4, 64, 2)
Gradients = dict[nn.Parameter, torch.Tensor]


class Noted(Shared):
    """Keeps a copy of what it sends."""

    def send(self, parameters: list[nn.Parameter], flat: torch.Tensor, views: list) -> None:
        self.own.update((each, view.double()) for each, view in zip(parameters, views))
        super().send(parameters, flat, views)


def step(model: DDP, images: torch.Tensor, labels: torch.Tensor) -> tuple[Gradients, Gradients]:
    """This rank's own gradients, and what it holds after backward: all but the last layer's, which
    are DDP's."""
    model.module._shared.own = {}
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=ON_GPU):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    own = model.module._shared.own
    return own, {each: each.grad.double() for each in own}


def mean_of(own: Gradients) -> Gradients:
    """Over all ranks."""
    found = {each: gradient.clone() for each, gradient in own.items()}
    for gradient in found.values():
        distributed.all_reduce(gradient)
    return {each: gradient / distributed.get_world_size() for each, gradient in found.items()}


def are_equal(found: Gradients) -> bool:
    """On all ranks? Their sums are, to the last bit."""
    sums = torch.stack([each.abs().sum() for each in found.values()])
    of_all = [torch.empty_like(sums) for _ in range(distributed.get_world_size())]
    distributed.all_gather(of_all, sums)
    return all(torch.equal(sums, each) for each in of_all)


def apart(found: Gradients, mean: Gradients) -> float:
    """How far from the mean, relative to it; of the parameter that is furthest."""
    far = [(found[each] - mean[each]).norm() / mean[each].norm() for each in mean]
    return torch.stack(far).max().item()


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if ON_GPU else "gloo")
    torch.manual_seed(0)
    net = ResNet(Bottleneck, BLOCKS).to(device, memory_format=torch.channels_last)
    model = DDP(convert(net), gradient_as_bucket_view=True)
    net._shared = Noted(net, model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    torch.manual_seed(1 + rank)
    for number in range(STEPS):
        images = torch.randn(IMAGES, 3, PX, PX, device=device)
        own, shared = step(model, images, torch.randint(1000, (IMAGES,), device=device))
        mean, equal = mean_of(own), are_equal(shared)
        if rank == 0:
            print(
                f"step {number}: {len(own)} gradients, equal on all ranks: {equal}; "
                f"{apart(shared, mean):.0e} from the mean, this rank's own {apart(own, mean):.2f}",
                flush=True,
            )
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
