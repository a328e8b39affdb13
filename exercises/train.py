"""Train ResNet-50, time every step, validate after every epoch.

This one script carries the whole ladder: what a rung changes is in its config, and what
you write is at the numbered TODOs. `course run` gives it a config; started by hand it
trains the quick baseline.
"""

import tarfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import islice

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DistributedSampler, get_worker_info

import fast_resnet
from course.data.formats.shards import ShardReader
from course.data.loader import image_sets, loaders, normalised, randaugmented
from course.training import models, optimizers, precision, profiling, sync_batchnorm
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.recorder import recording


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # every rung starts from the same weights and sees the same images
    precision.set_tf32(cfg.precision == "tf32")

    # TODO 1, day 1: compute on the accelerator, if the rung asks for it and the machine has one
    device = torch.device("cpu")

    # TODO 7, day 2: with a process for each device: take this rank's, and join the others

    sets = image_sets(cfg)
    # TODO 6, day 2: who loads batches, how far ahead, into which memory: DataLoader's arguments
    loading = {}
    # TODO 8, day 2: every rank takes its own share of each batch of cfg.batch_size images
    share, sampler = cfg.batch_size, None  # all images of a batch, in random order
    # TODO 9, day 2: and validates its own share, no image twice
    val_sampler = None  # all images
    # TODO 10, day 3: train on the images of shards, where the config asks for them
    train_batches, val_batches = loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )
    model = models.create(cfg.model, sets.classes)
    torch.manual_seed(cfg.seed + run.rank)  # the same weights on every rank, but crops of its own
    # TODO 1, day 1: move the model's weights to the device
    # TODO 4, day 1: store the weights channels last
    if cfg.sync_batchnorm:
        model = sync_batchnorm.convert(model)
    if cfg.algebra:
        model = fast_resnet.convert(model)
    net = model  # itself, whatever is wrapped around it below
    # TODO 16, day 3: compile the network, once, for training; what DDP does stays outside

    # TODO 8, day 2: average the gradients of all ranks, while backward still computes others
    criterion = nn.CrossEntropyLoss()
    criterion.label_smoothing = cfg.label_smoothing
    # TODO 14, day 3: weight decay for filters and matrices; for vectors if the config has it so
    weights = model.parameters()
    optimizer = optimizers.create(weights, cfg)
    optimizers.schedule(optimizer, cfg)
    # TODO 15, day 3: search: from cfg.lr / 10,000 to cfg.lr, the same factor at each update
    averaged = optimizers.Averaged(net, optimizer, cfg)

    # TODO 2, day 1: run the forward pass under autocast, in the config's precision
    autocast = nullcontext()
    # TODO 3, day 1: scale the loss where gradients in fp16 would vanish

    # TODO 5, day 1: let the profiler record what every operator does, on the config's schedule

    meter = Meter(run, device)
    for epoch in range(cfg.epochs):
        model.train()
        # TODO 8, day 2: shuffle anew in every epoch, on all ranks alike
        for images, labels in meter.steps(train_batches, epoch):
            # TODO 1, day 1: the batch must lie where the weights lie
            if cfg.randaugment == "device":
                images = randaugmented(images)
            images = normalised(images)
            if cfg.mix:
                mix = {"mixup": mixup, "cutmix": cutmix}[cfg.mix]
                labels = torch.eye(sets.classes, device=device)[labels]  # rows: 1 at the class
                images, labels = mix(images, labels, cfg.mix_alpha)
            # TODO 4, day 1: and so must its layout be that of the weights
            meter.lap("load")

            with autocast:
                scores = model(images)
                meter.lap("forward")
                loss = criterion(scores, labels)
            meter.lap("loss")

            # TODO 3, day 1: backward from the scaled loss
            loss.backward()
            meter.lap("backward")

            # TODO 3, day 1: unscale, and step unless a gradient overflowed
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            # TODO 5, day 1: the profiler's schedule counts steps

        if cfg.val_steps:
            with averaged.validated() as validated:
                run.epoch(**validate(validated, val_batches, cfg, device, autocast))
    # TODO 5, day 1: and it is done
    # TODO 9, day 2: all ranks have the same weights: one of them writes
    run.save_weights(net)


class Shards(ShardReader):
    """The training images of tar files; what reads them in turn, mixes and crops is inherited."""

    # TODO 10, day 3: the images of a shard, from its beginning to its end, with their classes

    # TODO 11, day 3: each worker of each rank reads shards of its own


def mixup(images, labels, alpha):
    """Images (N, 3, H, W), each blended with another, and their labels (N, classes) likewise."""
    # TODO 12, day 3: keep a share of each image and its label; the rest is another one's
    return images, labels


def cutmix(images, labels, alpha):
    """Images (N, 3, H, W), each with a box of another, and labels (N, classes) by their areas."""
    # TODO 13, day 3: a box of another image in each; its label counts by what it really covers
    return images, labels


@torch.no_grad()
def validate(model, batches, cfg, device, autocast):
    """Mean loss and top-1 accuracy over at most `cfg.val_steps` batches, on all ranks together."""
    model.eval()
    totals = torch.zeros(3, device=device)  # sum of losses, correct, images
    for images, labels in islice(batches, cfg.val_steps):
        images, labels = normalised(images.to(device)), labels.to(device)
        with autocast:
            scores = model(images)
        totals[0] += nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        totals[1] += (scores.argmax(dim=1) == labels).sum()
        totals[2] += len(labels)
    # TODO 9, day 2: add up what the ranks have counted
    loss, correct, seen = totals.tolist()
    return {"val_loss": loss / seen, "val_top1": correct / seen, "val_images": round(seen)}


if __name__ == "__main__":
    with recording() as run:
        main(run)
