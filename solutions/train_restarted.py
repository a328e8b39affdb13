"""Train so that the training can be stopped at any step, and resumes as if nothing had happened.

Day 4's third script. The loop is that of train.py, with any number of ranks. If it is started again
in the same folder, it resumes. You write code at the TODOs.
"""

import os
import signal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler
from torchvision.transforms import v2

from course.data.loader import image_sets, loaders, normalised, skip
from course.training import checkpoints, models, optimizers, precision, randomness
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.rank_group import any_rank, join_group, validate
from course.training.recorder import recording
from labs.restart.interruptions import Interruptions


def main(run):
    cfg = run.config
    randomness.seed_all(cfg)  # the same initial weights on every rank
    precision.set_tf32(cfg.precision == "tf32")
    device = join_group(run)
    sets = image_sets(cfg)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all images
    sampler, train_batches, val_batches = batches_of_rank(sets, run, device)
    layout = torch.channels_last if cfg.channels_last else torch.preserve_format
    net = models.create(cfg.model, sets.classes, cfg.image_px).to(device, memory_format=layout)
    # By default, DDP groups gradients anew after a process's first step: after a restart, it would
    # add them up in a different order. It does not if it has to look for unused weights.
    options = {"find_unused_parameters": cfg.deterministic}
    model = DDP(net, **options) if run.world_size > 1 else net
    torch.manual_seed(cfg.seed + run.rank)
    mix = {"mixup": v2.MixUp, "cutmix": v2.CutMix}.get(cfg.mix)
    mix = mix and mix(alpha=cfg.mix_alpha, num_classes=sets.classes)
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = optimizers.create(net.parameters(), cfg)
    schedule = optimizers.schedule(optimizer, cfg)
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")

    parts = {"model": net, "optimizer": optimizer}
    # >>> checkpoint: add the other parts whose state changes from step to step
    parts |= {"scaler": scaler, "schedule": schedule}
    # --- before
    # <<<
    step = 0  # completed steps
    # >>> resume: if there is a complete checkpoint, restore all states from the newest
    if cfg.save_every and (saved := checkpoints.newest(run.checkpoints)):
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        randomness.set_states(saved["random"], device)
        step = saved["step"]
    # --- before
    # <<<
    store = checkpoints.BackgroundWriter() if cfg.async_save else save
    end_requests = []  # not empty after SIGTERM
    # >>> sigterm: handle SIGTERM, which would end the process at once: only note it
    signal.signal(signal.SIGTERM, lambda *_: end_requests.append("SIGTERM"))
    # --- before
    # <<<

    meter = Meter(run, device, first=step, hooks=[Interruptions(run)])
    for epoch in range(max(step - 1, 0) // cfg.steps, cfg.epochs):  # each ends by validating
        model.train()
        sampler.set_epoch(epoch)
        # >>> resume: skip the images that this epoch has already used
        skip(train_batches, (step - epoch * cfg.steps) * (cfg.batch_size // run.world_size))
        # --- before
        # <<<
        for images, labels in meter.steps(train_batches, epoch):
            images = normalised(images.to(device, non_blocking=cfg.non_blocking))
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            if mix:
                images, labels = mix(images, labels)
            images = images.contiguous(memory_format=layout)
            meter.lap("load")
            with autocast:
                scores = model(images)
                meter.lap("forward")
                loss = criterion(scores, labels)
            meter.lap("loss")
            scaler.scale(loss).backward()
            meter.lap("backward")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)

            step, ends = meter.step, any_rank(end_requests, device)
            if cfg.save_every and (step % cfg.save_every == 0 or ends):
                random = randomness.get_states(device)  # a collective: all ranks call it
                # >>> checkpoint: one rank stores all states, the step and the random states
                if run.rank == 0:
                    state = {name: part.state_dict() for name, part in parts.items()}
                    store(state | {"step": step, "random": random}, run.checkpoints, step)
                # --- before
                # <<<
            # >>> sigterm: after saving, stop: a new process continues
            if ends:
                run.mark_interrupted()
                return
            # --- before
            # <<<
        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast))
    if cfg.async_save:
        store.wait()


def save(state, folder, step):
    """Write a checkpoint so that a complete one exists even if this process dies now."""
    # >>> checkpoint: write under a temporary name, fsync, rename; keep the last two
    draft, final = folder / ".draft", folder / checkpoints.file_name(step)
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(final)
    checkpoints.remove_old(folder, keep=2)
    # --- before
    # <<<


def batches_of_rank(sets, run, device):
    """Return this rank's sampler, training batches and validation batches."""
    cfg = run.config
    loading = {name: getattr(cfg, name) for name in ("persistent_workers", "pin_memory")}
    ahead = cfg.prefetch_factor if cfg.workers else None
    loading |= {"num_workers": cfg.workers, "prefetch_factor": ahead}
    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    val_sampler = range(run.rank, len(sets.val), run.world_size)
    share = cfg.batch_size // run.world_size
    return sampler, *loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )


if __name__ == "__main__":
    with recording() as run:
        main(run)
