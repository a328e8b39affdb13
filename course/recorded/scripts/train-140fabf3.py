"""Train so that the training may be stopped at any step, and goes on as if nothing had been.

Day 4's third script. The loop is train.py's, on any number of ranks. When its process is started
again in the same folder, it goes on by itself. What you write is at the numbered TODOs.
"""

import os
import signal
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler
from torchvision.transforms import v2

from course.data.loader import image_sets, loaders, normalised, skip
from course.data.seeded import Seeded
from course.training import models, optimizers, precision
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.ranks.group import any_rank, joined, validate
from course.training.recorder import recording
from course.training.restart import checkpoint, randomness


def main(run):
    cfg = run.config
    randomness.begin(cfg)  # the same weights on every rank
    precision.set_tf32(cfg.precision == "tf32")
    device = joined(run)
    sets = image_sets(cfg)
    sets = replace(sets, train=Seeded(sets.train, cfg.seed))
    sampler, train_batches, val_batches = shared(sets, run, device)
    layout = torch.channels_last if cfg.channels_last else torch.preserve_format
    net = models.create(cfg.model, sets.classes, cfg.image_px).to(device, memory_format=layout)
    model = DDP(net) if run.world_size > 1 else net
    torch.manual_seed(cfg.seed + run.rank)
    mix = {"mixup": v2.MixUp, "cutmix": v2.CutMix}.get(cfg.mix)
    mix = mix and mix(alpha=cfg.mix_alpha, num_classes=sets.classes)
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = optimizers.create(net.parameters(), cfg)
    schedule = optimizers.schedule(optimizer, cfg)
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")

    parts = {"model": net, "optimizer": optimizer}
    # >>> TODO 35, day 4: what else changes from step to step, and is no number drawn at random
    parts |= {"scaler": scaler, "schedule": schedule}
    # --- before
    # <<<
    step = 0  # so many lie behind
    # >>> TODO 36, day 4: take all that the newest whole checkpoint has; there may be none
    if cfg.save_every and (saved := checkpoint.newest(run.checkpoints)):
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        randomness.set_states(saved["random"], device)
        step = saved["step"]
    # --- before
    # <<<
    store = checkpoint.Background() if cfg.async_save else save
    asked = []  # is not empty any more once somebody wants this process to end
    # >>> TODO 37, day 4: SIGTERM ends a process at once. Note it instead, and finish the step
    signal.signal(signal.SIGTERM, lambda *_: asked.append("to end"))
    # --- before
    # <<<

    meter = Meter(run, device, first=step)
    for epoch in range(step // cfg.steps, cfg.epochs):
        model.train()
        sampler.set_epoch(epoch)
        sets.train.set_epoch(epoch)
        # >>> TODO 36, day 4: of its images, so many have been seen
        skip(train_batches, step % cfg.steps * (cfg.batch_size // run.world_size))
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

            step, ends = meter.step, any_rank(asked, device)
            if cfg.save_every and (step % cfg.save_every == 0 or ends):
                random = randomness.states(device)  # of all ranks, so all must ask
                # >>> TODO 35, day 4: one rank saves: the parts' state, step, random numbers
                if run.rank == 0:
                    state = {name: part.state_dict() for name, part in parts.items()}
                    store(state | {"step": step, "random": random}, run.checkpoints, step)
                # --- before
                # <<<
            # >>> TODO 37, day 4: asked to end, and saved: leave the rest to another process
            if ends:
                run.interrupted()
                return
            # --- before
            # <<<
        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast))
    if cfg.async_save:
        store.wait()


def save(state, folder, step):
    """Write a checkpoint; whatever happens meanwhile, a whole one is there afterwards."""
    # >>> TODO 35, day 4: under another name until all is on the disk; then keep the last two
    draft, final = folder / ".draft", folder / checkpoint.named(step)
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(final)
    checkpoint.remove_old(folder, kept=2)
    # --- before
    # <<<


def shared(sets, run, device):
    """The sampler of this rank's share of images; its batches for training, and for validation."""
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
