"""Train ResNet-50, time every step, validate after every epoch.

This one script carries the whole ladder: what a rung changes is in its config, and what
you write is at the numbered TODOs. `course run` gives it a config; started by hand it
trains the quick baseline.
"""

from contextlib import nullcontext
from itertools import islice

import torch
from torch import nn

from course import models, precision, profiling
from course.data.loader import loaders
from course.meter import Meter
from course.precision import HALF
from course.recorder import recording


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # every rung starts from the same weights and sees the same images
    precision.set_tf32(cfg.precision == "tf32")

    # >>> TODO 1: compute on the accelerator, if the rung asks for it and the machine has one
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if cfg.device == "auto" and accelerator else torch.device("cpu")
    # --- before
    # device = torch.device("cpu")
    # <<<

    train_batches, val_batches, classes = loaders(cfg, device)
    model = models.create(cfg.model, classes)
    # >>> TODO 1: move the model's weights to the device
    model = model.to(device)
    # --- before
    # <<<
    # >>> TODO 4: store the weights channels last
    if cfg.channels_last:
        model = model.to(memory_format=torch.channels_last)
    # --- before
    # <<<
    if cfg.compile:  # a later day's rung
        model = torch.compile(model, mode=cfg.compile)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay,
        fused=cfg.fused or None,
    )

    # >>> TODO 2: run the forward pass under autocast, in the config's precision
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    # --- before
    # autocast = nullcontext()
    # <<<
    # >>> TODO 3: scale the loss where gradients in fp16 would vanish
    scaler = torch.amp.GradScaler(device.type, enabled=cfg.precision == "fp16")
    # --- before
    # <<<

    # >>> TODO 5: let the profiler record what every operator does, on the config's schedule
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()
    # --- before
    # <<<

    meter = Meter(run, device)
    for epoch in range(cfg.epochs):
        model.train()
        for images, labels in meter.steps(train_batches, epoch):
            # >>> TODO 1: the batch must lie where the weights lie
            images, labels = images.to(device), labels.to(device)
            # --- before
            # <<<
            # >>> TODO 4: and so must its layout be that of the weights
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

            # >>> TODO 3: backward from the scaled loss
            scaler.scale(loss).backward()
            # --- before
            # loss.backward()
            # <<<
            meter.lap("backward")

            # >>> TODO 3: unscale, and step unless a gradient overflowed
            scaler.step(optimizer)
            scaler.update()
            # --- before
            # optimizer.step()
            # <<<
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            # >>> TODO 5: the profiler's schedule counts steps
            profiler.step()
            # --- before
            # <<<

        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast))
    # >>> TODO 5: and it is done
    profiler.stop()
    # --- before
    # <<<


@torch.no_grad()
def validate(model, batches, cfg, device, autocast):
    """Mean loss and top-1 accuracy over at most `cfg.val_steps` batches."""
    model.eval()
    loss = correct = seen = 0
    for images, labels in islice(batches, cfg.val_steps):
        images, labels = images.to(device), labels.to(device)
        with autocast:
            scores = model(images)
        loss += nn.functional.cross_entropy(scores.float(), labels, reduction="sum").item()
        correct += (scores.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    return {"val_loss": loss / seen, "val_top1": correct / seen}


if __name__ == "__main__":
    with recording() as run:
        main(run)
