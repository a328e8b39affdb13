"""Train ResNet-50, time every step, validate after every epoch.

This one script carries the whole ladder: what a rung changes is in its config, and what
you write is at the numbered TODOs. `course run` gives it a config; started by hand it
trains the quick baseline.
"""

from contextlib import nullcontext
from datetime import timedelta
from itertools import islice

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course.data.loader import image_sets, loaders, normalised
from course.training import models, precision, profiling, sync_batchnorm
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.recorder import recording


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # every rung starts from the same weights and sees the same images
    precision.set_tf32(cfg.precision == "tf32")

    # TODO 1, solved: compute on the accelerator, if the rung asks for it and the machine has one
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")

    # TODO 7, solved: with a process for each device: take this rank's device, and join the others
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        distributed.init_process_group(timeout=timedelta(seconds=cfg.collective_timeout_s))

    sets = image_sets(cfg)
    # TODO 6, solved: who loads batches, how far ahead, into which memory: DataLoader's arguments
    loading = {"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip
    share, sampler = cfg.batch_size, None  # all images of a batch, in random order
    # TODO 8, solved: every rank takes its own share of each batch of cfg.batch_size images
    share = cfg.batch_size // run.world_size
    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    val_sampler = None  # all images
    # TODO 9, solved: and validates its own share, no image twice
    val_sampler = range(run.rank, len(sets.val), run.world_size)
    train_batches, val_batches = loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )
    model = models.create(cfg.model, sets.classes)
    torch.manual_seed(cfg.seed + run.rank)  # the same weights on every rank, but crops of its own
    # TODO 1, solved: move the model's weights to the device
    model = model.to(device)
    # TODO 4, solved: store the weights channels last
    if cfg.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if cfg.sync_batchnorm:
        model = sync_batchnorm.convert(model)
    net = model  # itself, whatever is wrapped around it below
    # TODO 8, solved: average the gradients of all ranks, while backward still computes others
    if run.world_size > 1:
        model = DDP(model, bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True,
                    find_unused_parameters=cfg.find_unused)  # fmt: skip
    if cfg.compile:  # a later day's rung
        model = torch.compile(model, mode=cfg.compile)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay,
        fused=cfg.fused or None,
    )  # fmt: skip
    if cfg.fused:  # or momentum begins as unset memory where the scaler skips the first step
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    # TODO 2, solved: run the forward pass under autocast, in the config's precision
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    # TODO 3, solved: scale the loss where gradients in fp16 would vanish
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")

    # TODO 5, solved: let the profiler record what every operator does, on the config's schedule
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device)
    for epoch in range(cfg.epochs):
        model.train()
        # TODO 8, solved: shuffle anew in every epoch, on all ranks alike
        sampler.set_epoch(epoch)
        for images, labels in meter.steps(train_batches, epoch):
            # TODO 1, solved: the batch must lie where the weights lie
            images = images.to(device, non_blocking=cfg.non_blocking)
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            images = normalised(images)
            # TODO 4, solved: and so must its layout be that of the weights
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)
            meter.lap("load")
            model.require_backward_grad_sync = meter.step % 4 == 0

            with autocast:
                scores = model(images)
                meter.lap("forward")
                loss = criterion(scores, labels)
            meter.lap("loss")

            # TODO 3, solved: backward from the scaled loss
            scaler.scale(loss).backward()
            meter.lap("backward")
            if not model.require_backward_grad_sync:  # gradients add up
                meter.lap("optimizer", loss=loss)
                profiler.step()
                continue

            # TODO 3, solved: unscale, and step unless a gradient overflowed
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            # TODO 5, solved: the profiler's schedule counts steps
            profiler.step()

        if cfg.val_steps:
            run.epoch(**validate(net, val_batches, cfg, device, autocast))
    # TODO 5, solved: and it is done
    profiler.stop()
    # TODO 9, solved: all ranks have the same weights: one of them writes
    if run.rank == 0:
        run.save_weights(net)


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
    # TODO 9, solved: add up what the ranks have counted
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    loss, correct, seen = totals.tolist()
    return {"val_loss": loss / seen, "val_top1": correct / seen, "val_images": round(seen)}


if __name__ == "__main__":
    with recording() as run:
        main(run)
