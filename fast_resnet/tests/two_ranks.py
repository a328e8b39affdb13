"""Two processes that train under DDP, and report how far from autograd they are.

TRITON_INTERPRET=1 python two_ranks.py FOLDER
"""

import copy
import json
import os
import sys
from pathlib import Path

import torch
from small import gradients, median, quiet, relative
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models.resnet import ResNet

from fast_resnet import convert, plain

SHARE = 2  # images of a rank


def by_kernels(net: ResNet, twin: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """One rank's step, without the other rank; then a second, whose gradients are added."""
    wanted = [weight.grad for weight in twin.parameters()]
    first = [each.clone() for each in gradients(net, images, labels)]
    pairs = zip(net.buffers(), twin.buffers(), strict=True)
    moved = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    second = [now - before for now, before in zip(gradients(net, images, labels), first)]
    net.zero_grad()
    return {"off": relative(first, wanted), "added": relative(second, wanted), "moved": moved}


def in_half(net: ResNet, wanted: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """The median distance in fp16 under autocast, as usual and by kernels. (In bf16 the
    interpreter's products are not PyTorch's: it takes the bits for integers.)"""

    told = {}
    for way, prepare in (("usual", lambda twin: twin), ("kernels", convert)):
        twin = prepare(copy.deepcopy(net))
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(twin(images), labels)
        (1024 * loss).backward()
        found = [weight.grad / 1024 for weight in twin.parameters()]
        told[way] = median(found, wanted)
    return told


def lost(net: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict[str, bool]:
    """Is the loss by kernels NaN where one number of these is?"""
    told = {}
    for name in ("images", "layer3.0.bn1.bias", "layer3.0.bn3.bias"):
        twin, own = convert(copy.deepcopy(net)), images.clone()
        of = own if name == "images" else twin.get_parameter(name).data
        of[(0,) * of.dim()] = float("nan")
        told[name] = cross_entropy(twin(own), labels).isnan().item()
    return told


def under_ddp(net: ResNet, wanted: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Both ranks' step; and what it says of a second backward pass."""
    model, told = DDP(net, gradient_as_bucket_view=True), ""
    loss = cross_entropy(model(images), labels)
    loss.backward(retain_graph=True)
    found = [weight.grad for weight in net.parameters()]
    total = sum(each.double().abs().sum().item() for each in found)
    off = relative(found, wanted)
    try:
        loss.backward()
    except RuntimeError as error:
        told = str(error)
    return {"off": off, "sum": total, "twice": told}


def shared(net: ResNet, wanted: list, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """What ranks share without DDP: of a pass alone and one together; of images that autograd has.

    Before, each rank has a bias of its own.
    """
    rank = distributed.get_rank()
    with torch.no_grad():
        net.bn1.bias += rank
    model = DDP(net, gradient_as_bucket_view=True)
    net.zero_grad()
    net.eval()(images)  # no part of a training: alone
    net.train()
    left = [name for name, _ in net.named_parameters() if name not in model.parameters_to_ignore]
    with model.no_sync():
        cross_entropy(model(images), labels).backward()
    alone = [weight.grad.clone() for weight in net.parameters()]
    cross_entropy(model(images), labels).backward()
    found = [weight.grad / 2 for weight in net.parameters()]
    strides = [weight.grad.stride() == weight.stride() for weight in net.parameters()]
    told = {"left": left, "alone": relative(alone, found), "strides": all(strides)}
    sums = [each.double().sum().item() for each in (*found, *net.buffers(), net.bn1.bias)]
    net.zero_grad()
    cross_entropy(model(images[:, :, :24, :24]), labels).backward()
    sums += [weight.grad.double().sum().item() for weight in net.parameters()]
    sums += [each.double().sum().item() for each in net.buffers()]
    told |= {"partly": partly(net, images, labels)}
    return told | {"off": relative(found, wanted), "sums": sums}


def partly(net: ResNet, images: torch.Tensor, labels: torch.Tensor) -> dict:
    """Sums of what ranks share where not all of a network trains: as in evaluation, with the
    statistics that it has; without its first layers, which autograd then leaves out; and without
    the last."""
    told = {}
    ways = {"eval": [], "first": [net.conv1, net.bn1, net.layer1], "last": [net.fc]}
    for way, frozen in ways.items():
        net.zero_grad()
        net.train(way != "eval")
        net.requires_grad_(True)
        for layer in frozen:
            layer.requires_grad_(False)
        model = DDP(net, gradient_as_bucket_view=True)
        cross_entropy(model(images), labels).backward()
        found = [weight.grad for weight in net.parameters() if weight.requires_grad]
        told[way] = [None if each is None else each.double().sum().item() for each in found]
    return told


def main(folder: Path) -> None:
    """Be both ranks: they write rank-0.json and rank-1.json. PyTorch is imported for both here,
    and autograd's gradients are theirs."""
    torch.set_num_threads(1)
    shares = [slice(0, SHARE), slice(SHARE, 2 * SHARE)]
    net, images, labels = quiet(shares)
    twins = [copy.deepcopy(net).double() for _ in shares]
    each = [gradients(twin, images[s].double(), labels[s]) for twin, s in zip(twins, shares)]
    own = [(images[share], labels[share]) for share in shares]
    other = os.fork()
    rank = 0 if other else 1
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    told = of_rank(rank, net, twins, each, *own[rank])
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()
    if not other:
        os._exit(0)  # what else there is to be done at an end is the first one's
    _, ended = os.waitpid(other, 0)
    sys.exit(int(ended != 0))


def of_rank(
    rank: int, net: ResNet, twins: list, each: list, images: torch.Tensor, labels: torch.Tensor
) -> dict:
    """What a rank tells of its images, beside the gradients that autograd has of both ranks'."""
    own, wanted = (images, labels), [(a + b) / 2 for a, b in zip(*each)]
    by_plain = plain.convert(copy.deepcopy(net).double())
    told = {"plain": under_ddp(by_plain, wanted, images.double(), labels)}
    if "TRITON_INTERPRET" in os.environ:
        if rank == 1:
            told["fp16"] = in_half(net, each[rank], *own)
            told["lost"] = lost(net, *own)
        net = convert(net)
        if rank == 0:
            told["fp32"] = by_kernels(net, twins[rank], *own)
        told["kernels"] = under_ddp(net, wanted, *own)
        told["shared"] = shared(net, wanted, *own)
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
