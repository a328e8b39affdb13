"""Two processes that train under DDP, and report how far from autograd they are.

TRITON_INTERPRET=1 python two_ranks.py FOLDER
"""

import copy
import json
import os
import sys
from pathlib import Path

import torch
from small import gradients, median, network_and_batch, relative
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models.resnet import ResNet

from fast_resnet import convert, plain

SHARE = 2  # images of a rank


def by_kernels(net: ResNet, twin: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Take one rank's step without the other rank, then a second, whose gradients are added."""
    expected = [weight.grad for weight in twin.parameters()]
    first = [gradient.clone() for gradient in gradients(net, images, labels)]
    pairs = zip(net.buffers(), twin.buffers(), strict=True)
    drift = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    second = [now - before for now, before in zip(gradients(net, images, labels), first)]
    net.zero_grad()
    return {"off": relative(first, expected), "added": relative(second, expected), "moved": drift}


def in_half(net: ResNet, expected: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Return the median error in fp16 under autocast, as usual and by kernels.

    In bf16 the interpreter's products differ from PyTorch's: it takes the bits for integers.
    """
    errors = {}
    for name, prepare in (("usual", lambda twin: twin), ("kernels", convert)):
        twin = prepare(copy.deepcopy(net))
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(twin(images), labels)
        (1024 * loss).backward()
        actual = [weight.grad / 1024 for weight in twin.parameters()]
        errors[name] = median(actual, expected)
    return errors


def nan_losses(net: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict[str, bool]:
    """Return whether the loss by kernels is NaN if one number of these tensors is."""
    is_nan = {}
    for name in ("images", "layer3.0.bn3.bias"):
        twin, inputs = convert(copy.deepcopy(net)), images.clone()
        target = inputs if name == "images" else twin.get_parameter(name).data
        target[(0,) * target.dim()] = float("nan")
        is_nan[name] = cross_entropy(twin(inputs), labels).isnan().item()
    return is_nan


def under_ddp(net: ResNet, expected: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Take both ranks' step; return its errors and the message of a second backward pass."""
    model, message = DDP(net, gradient_as_bucket_view=True), ""
    loss = cross_entropy(model(images), labels)
    loss.backward(retain_graph=True)
    actual = [weight.grad for weight in net.parameters()]
    total = sum(gradient.double().abs().sum().item() for gradient in actual)
    off = relative(actual, expected)
    try:
        loss.backward()
    except RuntimeError as error:
        message = str(error)
    return {"off": off, "sum": total, "twice": message}


def synced(net: ResNet, expected: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Compare gradients that ranks average without DDP: of two passes, the first under no_sync,
    and of images that run torchvision's code.

    The ranks start with different biases.
    """
    rank = distributed.get_rank()
    with torch.no_grad():
        net.bn1.bias += rank
    model = DDP(net, gradient_as_bucket_view=True)
    net.zero_grad()
    net.eval()(images)  # evaluation: not synchronised
    net.train()
    by_ddp = [name for name, _ in net.named_parameters() if name not in model.parameters_to_ignore]
    with model.no_sync():
        cross_entropy(model(images), labels).backward()
    unsynced = [weight.grad.clone() for weight in net.parameters()]
    cross_entropy(model(images), labels).backward()
    mean = [weight.grad / 2 for weight in net.parameters()]
    strides = [weight.grad.stride() == weight.stride() for weight in net.parameters()]
    report = {"by_ddp": by_ddp, "unsynced": relative(unsynced, mean), "strides": all(strides)}
    sums = [tensor.double().sum().item() for tensor in (*mean, *net.buffers(), net.bn1.bias)]
    net.zero_grad()
    cross_entropy(model(images[:, :, :24, :24]), labels).backward()
    sums += [weight.grad.double().sum().item() for weight in net.parameters()]
    sums += [tensor.double().sum().item() for tensor in net.buffers()]
    report |= {"partly": partly(net, images, labels)}
    return report | {"off": relative(mean, expected), "sums": sums}


def hooked(net: ResNet, expected: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Let a communication hook send half of each gradient's mean, and keep own statistics.

    Return how far gradients are from half the mean, the buckets, the sums of gradients by
    torchvision's code, the sum of the statistics, and the count of batches, which differs.
    """
    net.bn1.num_batches_tracked += distributed.get_rank()
    model = DDP(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    buckets = []

    def half(_, bucket):
        buckets.append(bucket.index())
        bucket.set_buffer(bucket.buffer() / 4)
        shapes = [gradient.shape for gradient in bucket.gradients()]
        assert shapes == [parameter.shape for parameter in bucket.parameters()]
        flat = torch.cat([gradient.view(-1) for gradient in bucket.gradients()])
        assert flat.equal(bucket.buffer())
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, half)
    net.zero_grad()
    cross_entropy(model(images), labels).backward()
    off = relative([2 * weight.grad for weight in net.parameters()], expected)
    net.zero_grad()
    cross_entropy(model(images[:, :, :24, :24]), labels).backward()
    sums = [weight.grad.double().sum().item() for weight in net.parameters()]
    statistics = sum(buffer.double().sum().item() for buffer in net.buffers())
    report = {"off": off, "buckets": buckets, "sums": sums, "statistics": statistics}
    return report | {"batches": net.bn1.num_batches_tracked.item()}


def sharded(net: ResNet, expected: list, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the errors of gradients by kernels under FSDP2."""
    net = copy.deepcopy(net).to(memory_format=torch.contiguous_format)
    fully_shard(net, mesh=distributed.device_mesh.init_device_mesh("cpu", (2,)))
    net.zero_grad()
    cross_entropy(net(images), labels).backward()
    assert net._step is not None
    return relative([weight.grad.full_tensor() for weight in net.parameters()], expected)


def partly(net: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Return sums of the averaged gradients of a partly frozen network: as in evaluation, with
    fixed statistics; without its first layers, which autograd then skips; without the last."""
    sums = {}
    frozen_layers = {"eval": [], "first": [net.conv1, net.bn1, net.layer1], "last": [net.fc]}
    for part, frozen in frozen_layers.items():
        net.zero_grad()
        net.train(part != "eval")
        net.requires_grad_(True)
        for layer in frozen:
            layer.requires_grad_(False)
        model = DDP(net, gradient_as_bucket_view=True)
        cross_entropy(model(images), labels).backward()
        trained = [weight.grad for weight in net.parameters() if weight.requires_grad]
        sums[part] = [
            None if gradient is None else gradient.double().sum().item() for gradient in trained
        ]
    return sums


def main(folder: Path) -> None:
    """Run both ranks: they write rank-0.json and rank-1.json.

    Both use this process's import of PyTorch and its reference gradients.
    """
    torch.set_num_threads(1)
    shares = [slice(0, SHARE), slice(SHARE, 2 * SHARE)]
    net, images, labels = network_and_batch(shares)
    twins = [copy.deepcopy(net).double() for _ in shares]
    exact = [gradients(twin, images[s].double(), labels[s]) for twin, s in zip(twins, shares)]
    batches = [(images[share], labels[share]) for share in shares]
    child = os.fork()
    rank = 0 if child else 1
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    report = of_rank(rank, net, twins, exact, *batches[rank])
    (folder / f"rank-{rank}.json").write_text(json.dumps(report))
    distributed.destroy_process_group()
    if not child:
        os._exit(0)  # only the parent process cleans up
    _, status = os.waitpid(child, 0)
    sys.exit(int(status != 0))


def of_rank(
    rank: int, net: ResNet, twins: list, exact: list, images: torch.Tensor, labels: torch.Tensor
) -> dict:
    """Return a rank's report, from its images and both ranks' exact gradients."""
    inputs, expected = (images, labels), [(a + b) / 2 for a, b in zip(*exact)]
    by_plain = plain.convert(copy.deepcopy(net).double())
    report = {"plain": under_ddp(by_plain, expected, images.double(), labels)}
    if "TRITON_INTERPRET" in os.environ:
        if rank == 1:
            report["fp16"] = in_half(net, exact[rank], *inputs)
            report["nan"] = nan_losses(net, *inputs)
        net = convert(net)
        if rank == 0:
            report["fp32"] = by_kernels(net, twins[rank], *inputs)
        report["kernels"] = under_ddp(net, expected, *inputs)
        report["hook"] = hooked(net, expected, *inputs)
        report["fsdp"] = sharded(net, expected, *inputs)
        report["shared"] = synced(net, expected, *inputs)
    return report


if __name__ == "__main__":
    main(Path(sys.argv[1]))
