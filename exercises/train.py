"""Train ResNet-50, time every step, and validate after every epoch.

One script for the full ladder: a rung only changes the config, and you write code at the numbered
TODOs. `course run` passes a config; if you start the script yourself, it trains the quick baseline.
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
from course.data.augment import random_erased
from course.data.formats.shards import ShardReader
from course.data.loader import image_sets, loaders, normalised, randaugmented, repeated_sampler
from course.training import models, optimizers, precision, profiling, randomness, sync_batchnorm
from course.training.checkpoints import Checkpoints
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.recorder import recording


def main(run):
    cfg = run.config
    randomness.seed_all(cfg)  # the same initial weights and images on every rung
    precision.set_tf32(cfg.precision == "tf32")

    # TODO device: use the accelerator if the rung requests it and the machine has one
    device = torch.device("cpu")

    # TODO process_group: select this rank's device and join the process group

    sets = image_sets(cfg)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all images
    # TODO dataloader: choose the DataLoader's workers, prefetching and pinned memory
    loading = {}
    # TODO data_parallel: split each batch of cfg.batch_size images among the ranks
    share, sampler = cfg.batch_size, None  # all images, in random order
    if cfg.ra_reps > 1:
        sampler = repeated_sampler(sets, cfg, run.rank, run.world_size)
    # TODO distributed_validation: split the validation images among the ranks, each image once
    val_sampler = None  # all images
    # TODO shards: read the training images from shards if the config requests it
    train_batches, val_batches = loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )
    model = models.create(cfg.model, sets.classes)
    torch.manual_seed(cfg.seed + run.rank)  # same weights on every rank, different crops
    # TODO device: move the model to the device
    # TODO channels_last: store the weights in channels_last
    if cfg.sync_batchnorm:
        model = sync_batchnorm.convert(model)
    if cfg.algebra:
        model = fast_resnet.convert(model)
    net = model  # without the wrappers below
    # TODO compile: compile the network once, and train the result

    ddp_options = {"bucket_cap_mb": cfg.bucket_mb, "find_unused_parameters": cfg.find_unused,
                   "gradient_as_bucket_view": True}  # fmt: skip
    # TODO data_parallel: average the gradients over the ranks, overlapping with backward
    criterion = nn.CrossEntropyLoss()
    criterion.label_smoothing = cfg.label_smoothing
    # TODO param_groups: weight decay for filters and matrices; for vectors only if cfg.norm_decay
    weights = model.parameters()
    optimizer = optimizers.create(weights, cfg)
    schedule = optimizers.schedule(optimizer, cfg)
    # TODO lr_range_test: learning-rate search: from cfg.lr / 10,000 to cfg.lr by a constant factor
    averaged = optimizers.Averaged(net, optimizer, cfg)

    # TODO amp: run the forward pass under autocast in the config's precision
    autocast = nullcontext()
    scaler = None
    # TODO grad_scaler: scale the loss if gradients would underflow in fp16

    parts = {"model": net, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    checkpoints = Checkpoints(run, device, parts | {"averaged": averaged})
    step = checkpoints.resume(train_batches, model)  # completed steps: 0, unless it was interrupted

    # TODO profiler: record operators with the profiler, on the config's schedule

    meter = Meter(run, device, first=step)
    for epoch in range(checkpoints.first_epoch, cfg.epochs):
        model.train()
        # TODO data_parallel: shuffle differently in each epoch, the same on all ranks
        for images, labels in meter.steps(train_batches, epoch):
            # TODO device: move the batch to the device
            if cfg.randaugment == "device":
                images = randaugmented(images)
            images = normalised(images)
            if cfg.random_erasing:
                images = random_erased(images, cfg.random_erasing)
            if cfg.mix:
                mix, alpha = {"mixup": mixup, "cutmix": cutmix}.get(cfg.mix), cfg.mix_alpha
                if cfg.mix == "both":  # a batch has one of them; CutMix with uniform proportions
                    mix, alpha = ((mixup, alpha), (cutmix, 1.0))[torch.randint(2, ()).item()]
                labels = torch.eye(sets.classes, device=device)[labels]  # one-hot rows
                images, labels = mix(images, labels, alpha)
            # TODO channels_last: give the images the same memory format as the weights
            meter.lap("load")

            with autocast:
                scores = model(images)
                meter.lap("forward")
                loss = criterion(scores, labels)
            meter.lap("loss")

            # TODO grad_scaler: run backward from the scaled loss
            loss.backward()
            meter.lap("backward")

            # TODO grad_scaler: unscale the gradients, and skip the step if one overflowed
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            # TODO profiler: signal to the profiler that a step has ended
            if checkpoints.ends_after(meter.step):
                return  # saved: another process continues

        if cfg.val_steps:
            with averaged.validated() as validated:
                run.epoch(**validate(validated, val_batches, cfg, device, autocast))
                checkpoints.keep_best(validated)
    # TODO profiler: stop the profiler
    # TODO distributed_validation: save the weights on one rank only, because all ranks have the same
    with averaged.validated() as validated:
        run.save_weights(validated)


class Shards(ShardReader):
    """Training images from tar files; the base class iterates over shards, shuffles and crops."""

    # TODO shards: images_of(self, shard) yields its images in order, with their classes

    # TODO worker_shards: worker_shards(self) returns different shards for each worker


def mixup(images, labels, alpha):
    """Blend each image (N, 3, H, W) with a random other image; labels (N, classes) likewise."""
    # TODO mixup: mix each image and label with those of a random other image
    return images, labels


def cutmix(images, labels, alpha):
    """Paste a box of another image into each (N, 3, H, W); weight labels (N, classes) by area."""
    # TODO cutmix: paste a box of another image; weight the labels by the area it covers
    return images, labels


@torch.no_grad()
def validate(model, batches, cfg, device, autocast):
    """Return mean loss and accuracies over up to `cfg.val_steps` batches of all ranks."""
    model.eval()
    totals = torch.zeros(4, device=device)  # sum of losses, top-1 and top-5 hits, images
    for images, labels in islice(batches, cfg.val_steps):
        images, labels = normalised(images.to(device)), labels.to(device)
        with autocast:
            scores = model(images)
            if cfg.flip_tta:
                scores = (scores + model(images.flip(-1))) / 2
        totals[0] += nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        totals[1] += (scores.argmax(dim=1) == labels).sum()
        totals[2] += (scores.topk(min(5, scores.shape[1])).indices == labels[:, None]).sum()
        totals[3] += len(labels)
    # TODO distributed_validation: add up the totals of all ranks
    loss, top1, top5, count = totals.tolist()
    means = {"val_loss": loss / count, "val_top1": top1 / count, "val_top5": top5 / count}
    return means | {"val_images": round(count)}


if __name__ == "__main__":
    with recording() as run:
        main(run)
