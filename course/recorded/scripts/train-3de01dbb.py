"""Train a network that asks for more memory than there is: CoAtNet, or a vision transformer.

Day 4's script. It begins where train.py ends: on the accelerator, under autocast, with a process
for each device. What a rung changes is in its config, and what you write is at the numbered TODOs.
"""

from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import islice

import torch
from torch import distributed, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DistributedSampler

from course.data.loader import image_sets, loaders, normalised
from course.training import models, optimizers, precision, profiling
from course.training.meter import Meter
from course.training.models import COSTLY
from course.training.precision import HALF
from course.training.recorder import recording


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # every rank starts from the same weights
    precision.set_tf32(cfg.precision == "tf32")
    device = joined(run)

    sets = image_sets(cfg)
    sampler, train_batches, val_batches = shared(sets, run, device)
    model = models.create(cfg.model, sets.classes, cfg.image_px).to(device)
    if cfg.channels_last:
        model = model.to(memory_format=torch.channels_last)
    torch.manual_seed(cfg.seed + run.rank)  # but crops of its own
    net = model  # itself, whatever is wrapped around it below

    # >>> TODO 19, day 4: of the blocks that the config names, keep only what enters them
    chosen = {"every": models.blocks(net), "second": models.blocks(net)[::2],
              "selective": models.blocks(net)}  # fmt: skip
    for block in chosen.get(cfg.checkpointing, []):
        how = {"use_reentrant": False}
        if cfg.checkpointing == "selective":  # and the results of what takes long to compute
            how["context_fn"] = partial(create_selective_checkpoint_contexts, COSTLY)
        block.forward = partial(checkpoint, block.forward, **how)
    # --- before
    # <<<
    if run.world_size > 1:
        model = DDP(model, bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = optimizers.create(model.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)

    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    # >>> TODO 20, day 4: let what backward needs wait in the host's memory, if the config asks
    kept = save_on_cpu(pin_memory=device.type == "cuda") if cfg.offload else nullcontext()
    # --- before
    # kept = nullcontext()
    # <<<
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device)
    for epoch in range(cfg.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in meter.steps(train_batches, epoch):
            images = normalised(images.to(device, non_blocking=cfg.non_blocking))
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)
            # >>> TODO 17, day 4: split the batch: the network sees cfg.micro_batch images at once
            size = cfg.micro_batch or len(images)
            micro_batches = [*zip(images.split(size), labels.split(size))]
            # --- before
            # micro_batches = [(images, labels)]
            # <<<
            meter.lap("load")

            step_loss = 0
            for number, (inputs, targets) in enumerate(micro_batches, 1):
                silent = nullcontext()
                # >>> TODO 18, day 4: only behind the last micro-batch do ranks average gradients
                if run.world_size > 1 and number < len(micro_batches):
                    silent = model.no_sync()
                # --- before
                # <<<
                with silent, autocast, kept:
                    scores = model(inputs)
                    meter.lap("forward")
                    loss = criterion(scores, targets)
                    # >>> TODO 17, day 4: so that all images of the batch count alike
                    loss = loss * len(targets) / len(labels)
                    # --- before
                    # <<<
                meter.lap("loss")
                loss.backward()
                meter.lap("backward")
                step_loss += loss.detach()

            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=step_loss)
            profiler.step()

        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast))
    profiler.stop()
    if run.rank == 0:
        run.save_weights(net)


def joined(run):
    """This rank's device; with several ranks, it has joined the others."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if run.config.device == "auto" and accelerator else torch.device("cpu")
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        waits = timedelta(seconds=run.config.collective_timeout_s)
        distributed.init_process_group(timeout=waits)
    return device


def shared(sets, run, device):
    """The sampler of this rank's share of images; its batches for training, and for validation."""
    cfg = run.config
    loading = {"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip
    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    val_sampler = range(run.rank, len(sets.val), run.world_size)
    share = cfg.batch_size // run.world_size
    return sampler, *loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )


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
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    loss, correct, seen = totals.tolist()
    return {"val_loss": loss / seen, "val_top1": correct / seen, "val_images": round(seen)}


if __name__ == "__main__":
    with recording() as run:
        main(run)
