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

    # >>> device: use the accelerator if the rung requests it and the machine has one
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")
    # --- before
    # device = torch.device("cpu")
    # <<<

    # >>> process_group: select this rank's device and join the process group
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        distributed.init_process_group(timeout=timedelta(seconds=cfg.collective_timeout_s))
    # --- before
    # <<<

    sets = image_sets(cfg)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all images
    # >>> dataloader: choose the DataLoader's workers, prefetching and pinned memory
    loading = {"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip
    # --- before
    # loading = {}
    # <<<
    # >>> data_parallel: split each batch of cfg.batch_size images among the ranks
    share = cfg.batch_size // run.world_size
    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    # --- before
    # share, sampler = cfg.batch_size, None  # all images, in random order
    # <<<
    if cfg.ra_reps > 1:
        sampler = repeated_sampler(sets, cfg, run.rank, run.world_size)
    # >>> distributed_validation: split the validation images among the ranks, each image once
    val_sampler = range(run.rank, len(sets.val), run.world_size)
    # --- before
    # val_sampler = None  # all images
    # <<<
    # >>> shards: read the training images from shards if the config requests it
    if cfg.format == "shards":
        sets = replace(sets, train=Shards(sets, cfg, run.rank, run.world_size))
    # --- before
    # <<<
    train_batches, val_batches = loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )
    model = models.create(cfg.model, sets.classes)
    torch.manual_seed(cfg.seed + run.rank)  # same weights on every rank, different crops
    # >>> device: move the model to the device
    model = model.to(device)
    # --- before
    # <<<
    # >>> channels_last: store the weights in channels_last
    if cfg.channels_last:
        model = model.to(memory_format=torch.channels_last)
    # --- before
    # <<<
    if cfg.sync_batchnorm:
        model = sync_batchnorm.convert(model)
    if cfg.algebra:
        model = fast_resnet.convert(model)
    net = model  # without the wrappers below
    # >>> compile: compile the network once, and train the result
    if cfg.compile:
        model = torch.compile(model, mode=cfg.compile)
    # --- before
    # <<<

    ddp_options = {"bucket_cap_mb": cfg.bucket_mb, "find_unused_parameters": cfg.find_unused,
                   "gradient_as_bucket_view": True}  # fmt: skip
    # >>> data_parallel: average the gradients over the ranks, overlapping with backward
    if run.world_size > 1:
        model = DDP(model, **ddp_options)
    # --- before
    # <<<
    criterion = nn.CrossEntropyLoss()
    criterion.label_smoothing = cfg.label_smoothing
    # >>> param_groups: weight decay for filters and matrices; for vectors only if cfg.norm_decay
    filters = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]  # BatchNorm, biases
    decay = cfg.weight_decay if cfg.norm_decay else 0.0
    weights = [{"params": filters}, {"params": vectors, "weight_decay": decay}]
    # --- before
    # weights = model.parameters()
    # <<<
    optimizer = optimizers.create(weights, cfg)
    schedule = optimizers.schedule(optimizer, cfg)
    # >>> lr_range_test: learning-rate search: from cfg.lr / 10,000 to cfg.lr by a constant factor
    if cfg.schedule == "find":
        last = cfg.epochs * cfg.steps - 1
        search = LambdaLR(optimizer, lambda update: 1e4 ** (update / last - 1))
        optimizer.register_step_post_hook(lambda *_: search.step())
    # --- before
    # <<<
    averaged = optimizers.Averaged(net, optimizer, cfg)

    # >>> amp: run the forward pass under autocast in the config's precision
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    # --- before
    # autocast = nullcontext()
    # <<<
    scaler = None
    # >>> grad_scaler: scale the loss if gradients would underflow in fp16
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")
    # --- before
    # <<<

    parts = {"model": net, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    checkpoints = Checkpoints(run, device, parts | {"averaged": averaged})
    step = checkpoints.resume(train_batches, model)  # completed steps: 0, unless it was interrupted

    # >>> profiler: record operators with the profiler, on the config's schedule
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()
    # --- before
    # <<<

    meter = Meter(run, device, first=step)
    for epoch in range(checkpoints.first_epoch, cfg.epochs):
        model.train()
        # >>> data_parallel: shuffle differently in each epoch, the same on all ranks
        sampler.set_epoch(epoch)
        # --- before
        # <<<
        for images, labels in meter.steps(train_batches, epoch):
            # >>> device: move the batch to the device
            images = images.to(device, non_blocking=cfg.non_blocking)
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            # --- before
            # <<<
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
            # >>> channels_last: give the images the same memory format as the weights
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)
            # --- before
            # <<<
            meter.lap("load")

            with autocast:
                scores = model(images)
                meter.lap("forward")
                loss = criterion(scores, labels)
            meter.lap("loss")

            # >>> grad_scaler: run backward from the scaled loss
            scaler.scale(loss).backward()
            # --- before
            # loss.backward()
            # <<<
            meter.lap("backward")

            # >>> grad_scaler: unscale the gradients, and skip the step if one overflowed
            scaler.step(optimizer)
            scaler.update()
            # --- before
            # optimizer.step()
            # <<<
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            # >>> profiler: signal to the profiler that a step has ended
            profiler.step()
            # --- before
            # <<<
            if checkpoints.ends_after(meter.step):
                return  # saved: another process continues

        if cfg.val_steps:
            with averaged.validated() as validated:
                run.epoch(**validate(validated, val_batches, cfg, device, autocast))
                checkpoints.keep_best(validated)
    # >>> profiler: stop the profiler
    profiler.stop()
    # --- before
    # <<<
    # >>> distributed_validation: save the weights on one rank only, because all ranks have the same
    if run.rank == 0:
        with averaged.validated() as validated:
            run.save_weights(validated)
    # --- before
    # with averaged.validated() as validated:
    #     run.save_weights(validated)
    # <<<


class Shards(ShardReader):
    """Training images from tar files; the base class iterates over shards, shuffles and crops."""

    # >>> shards: images_of(self, shard) yields its images in order, with their classes
    def images_of(self, shard):
        with tarfile.open(shard, "r|") as members:  # as a stream, without seeking
            for member in members:
                content = members.extractfile(member).read()
                if member.name.endswith(".jpg"):
                    jpeg = content
                else:  # KEY.cls comes after KEY.jpg
                    yield jpeg, int(content)

    # --- before
    # <<<

    # >>> worker_shards: worker_shards(self) returns different shards for each worker
    def worker_shards(self):
        worker = get_worker_info()  # None in the main process
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        return self.shards[number::workers]

    # --- before
    # <<<


def mixup(images, labels, alpha):
    """Blend each image (N, 3, H, W) with a random other image; labels (N, classes) likewise."""
    # >>> mixup: mix each image and label with those of a random other image
    share = torch.distributions.Beta(alpha, alpha).sample((len(images), 1))
    share = share.to(images.device, non_blocking=True)
    other = torch.randperm(len(images), device=images.device)
    labels = share * labels + (1 - share) * labels[other]
    share = share[:, :, None, None]
    images = share * images + (1 - share) * images[other]
    # --- before
    # <<<
    return images, labels


def cutmix(images, labels, alpha):
    """Paste a box of another image into each (N, 3, H, W); weight labels (N, classes) by area."""
    # >>> cutmix: paste a box of another image; weight the labels by the area it covers
    count, _, height, width = images.shape
    device = images.device
    area = 1 - torch.distributions.Beta(alpha, alpha).sample((count, 1))
    half = area.to(device, non_blocking=True).sqrt() / 2
    y, x = torch.rand(2, count, 1, device=device)  # the boxes' centres
    rows = ((torch.arange(height, device=device) + 0.5) / height - y).abs() < half
    columns = ((torch.arange(width, device=device) + 0.5) / width - x).abs() < half
    box = rows[:, None, :, None] & columns[:, None, None, :]  # (N, 1, H, W)
    other = torch.randperm(count, device=device)
    images = torch.where(box, images[other], images)
    covered = box.float().mean(dim=(2, 3))  # (N, 1): the border may cut off part of a box
    labels = (1 - covered) * labels + covered * labels[other]
    # --- before
    # <<<
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
    # >>> distributed_validation: add up the totals of all ranks
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    # --- before
    # <<<
    loss, top1, top5, count = totals.tolist()
    means = {"val_loss": loss / count, "val_top1": top1 / count, "val_top5": top5 / count}
    return means | {"val_images": round(count)}


if __name__ == "__main__":
    with recording() as run:
        main(run)
