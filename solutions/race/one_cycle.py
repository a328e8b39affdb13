"""The race's second entry: the first one with a learning rate that also rises.

One cycle (lab 3.3) allows a higher rate while momentum falls, so fewer passes are enough.
"""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course.data.loader import image_sets, loaders, normalised
from course.training import models, optimizers
from course.training.precision import HALF
from course.training.recorder import recording

# What a run computes, on each track: fields of a Config.
SETTINGS = {
    "quick": {"model": "resnet8_patches", "epochs": 1, "steps": 72, "batch_size": 64, "lr": 0.2,
              "schedule": "one_cycle"},
    "cpu": {"model": "resnet8_patches", "epochs": 3, "steps": 256, "batch_size": 256, "lr": 0.2,
            "schedule": "one_cycle"},
    "gpu": {"model": "resnet18_cifar", "epochs": 7, "steps": 128, "batch_size": 512, "lr": 0.6,
            "schedule": "one_cycle"},
    "node": {"model": "resnet18_cifar", "epochs": 8, "steps": 64, "batch_size": 1024, "lr": 1.0,
             "schedule": "one_cycle"},
}  # fmt: skip


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)
    device = place(cfg, run)
    sets = image_sets(cfg)
    sampler = None
    if run.world_size > 1:
        sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    share = cfg.batch_size // run.world_size
    batches, _ = loaders(sets, cfg, device, share, sampler=sampler)

    net = models.create(cfg.model, sets.classes).to(device, memory_format=torch.channels_last)
    model = DDP(net) if run.world_size > 1 else net
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = optimizers.create(net.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)

    run.ready()
    for epoch in range(cfg.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        for images, labels in batches:
            images = normalised(images).to(memory_format=torch.channels_last)
            with autocast:
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.keep_weights(net)
    if run.rank == 0:
        run.save_weights(net)


def place(cfg, run):
    """This process's device; several join in a group."""
    found = torch.accelerator.current_accelerator(check_available=True)
    device = found if cfg.device == "auto" and found else torch.device("cpu")
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        distributed.init_process_group()
    return device


if __name__ == "__main__":
    with recording() as run:
        main(run)
