"""Have all ranks of the algebra the same gradients, and are these the mean of the ranks' own?

    torchrun --nproc-per-node=gpu benchmarks/fast_step/ranks.py     # or =2 where there is no GPU

On GPUs by its kernels, in steps of which the last are by CUDA graphs; elsewhere in two steps of its
plain form, over gloo. Each step is made twice: without DDP's sharing, for a rank's own gradients,
and with it. Distances are relative, of the parameter in the middle; by kernels two runs of one
step differ too, for numbers are added in any order.
"""

from __future__ import annotations

import os

import torch
import torchvision
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course.training.algebra import fused, plain

ON_GPU = torch.cuda.is_available()
IMAGES, STEPS = (32, 2 * fused.EAGER_STEPS + 2) if ON_GPU else (4, 2)


def gradients(model: DDP, images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Of each parameter, after a step in bf16; in float64."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return [each.grad.double() for each in model.parameters()]


def mean_of(own: list[torch.Tensor]) -> list[torch.Tensor]:
    """Over all ranks."""
    found = [each.clone() for each in own]
    for each in found:
        distributed.all_reduce(each)
    return [each / distributed.get_world_size() for each in found]


def are_equal(found: list[torch.Tensor]) -> bool:
    """On all ranks, to the last bit?"""
    sums = torch.stack([each.abs().sum() for each in found])
    of_all = [torch.empty_like(sums) for _ in range(distributed.get_world_size())]
    distributed.all_gather(of_all, sums)
    return all(torch.equal(sums, each) for each in of_all)


def apart(found: list[torch.Tensor], mean: list[torch.Tensor]) -> float:
    """How far from the mean, relative to it; of the parameter in the middle."""
    far = [(one - other).norm() / other.norm() for one, other in zip(found, mean)]
    return torch.stack(far).median().item()


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if ON_GPU else "gloo")
    torch.manual_seed(0)
    net = plain.convert(torchvision.models.resnet50().to(memory_format=torch.channels_last))
    model = DDP((fused.convert(net) if ON_GPU else net).to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        images = torch.randn(IMAGES, 3, 224, 224, device=device)
        labels = torch.randint(1000, (IMAGES,), device=device)
        with model.no_sync():
            own = gradients(model, images, labels)
        mean, shared = mean_of(own), gradients(model, images, labels)
        equal = are_equal(shared)
        if rank == 0:
            print(
                f"step {step}: equal gradients: {equal}, {apart(shared, mean):.3f} from the mean, "
                f"this rank's own {apart(own, mean):.3f}",
                flush=True,
            )
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
