"""Train a network that needs more memory than one GPU has: CoAtNet, or a vision transformer.

Day 4's first script. It starts where train.py ends: on the accelerator, under autocast, with one
process per device. A rung only changes the config, and you write code at the TODOs.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch import distributed, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DistributedSampler

from course.data.loader import image_sets, loaders, normalised
from course.training import models, optimizers, precision, profiling, randomness
from course.training.checkpoints import ShardedCheckpoints
from course.training.meter import Meter
from course.training.models import COSTLY
from course.training.precision import HALF
from course.training.rank_group import join_group, validate
from course.training.recorder import recording


def main(run):
    cfg = run.config
    randomness.seed_all(cfg)  # the same initial weights on every rank
    precision.set_tf32(cfg.precision == "tf32")
    device = join_group(run)

    sets = image_sets(cfg)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all images
    sampler, train_batches, val_batches = batches_of_rank(sets, run, device)
    model = models.create(cfg.model, sets.classes, cfg.image_px).to(device)
    if cfg.channels_last and not cfg.shard:  # fully_shard only accepts contiguous weights
        model = model.to(memory_format=torch.channels_last)
    torch.manual_seed(cfg.seed + run.rank)  # different crops on every rank
    net = model  # without the wrappers below

    # TODO recomputation: checkpoint the blocks that the config selects: keep only their inputs
    # TODO compile_blocks: (optional) compile each block separately if the config requests it
    # TODO reshard: (optional) with zero2, keep weights gathered between forward and backward
    reshard = True
    # TODO mixed_precision_policy: with cfg.gather_bf16, gather in bf16 and reduce in fp32
    policy = MixedPrecisionPolicy()
    units = models.units(net, cfg.unit_blocks)
    # TODO fully_shard: apply fully_shard to each unit, then to the network
    if run.world_size > 1:
        model = DDP(model, bucket_cap_mb=cfg.bucket_mb, gradient_as_bucket_view=True)
    # TODO prefetch: (optional) prefetch the next cfg.prefetch units in forward and in backward
    criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
    optimizer = optimizers.create(model.parameters(), cfg)
    schedule = optimizers.schedule(optimizer, cfg)
    first_epoch = 0
    # TODO sharded_checkpoint: resume from the checkpoint of another run, with any number of ranks

    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    # TODO mixed_precision_policy: the policy replaces autocast
    # TODO offloading: (optional) keep backward's tensors in host memory if cfg.offload is set
    offloading = nullcontext()
    parts = {"model": net, "optimizer": optimizer, "schedule": schedule}
    checkpoints = ShardedCheckpoints(run, device, parts)
    step = checkpoints.resume(train_batches, model)  # completed steps, if it was interrupted
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device, first=step)
    for epoch in range(first_epoch or checkpoints.first_epoch, cfg.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in meter.steps(train_batches, epoch):
            images = normalised(images.to(device, non_blocking=cfg.non_blocking))
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)
            # TODO accumulation: split the batch into micro-batches of cfg.micro_batch images
            micro_batches = [(images, labels)]
            meter.lap("load")

            step_loss = 0
            for number, (inputs, targets) in enumerate(micro_batches, 1):
                sync_context = nullcontext()
                # TODO no_sync: average gradients over ranks only after the last micro-batch
                # TODO shard_accumulation: reduce sharded gradients only in the last micro-batch
                with sync_context, autocast, offloading:
                    scores = model(inputs)
                    meter.lap("forward")
                    # TODO mixed_precision_policy: compute the loss in fp32, as autocast does
                    loss = criterion(scores, targets)
                    # TODO accumulation: weight the loss so that every image counts equally
                meter.lap("loss")
                loss.backward()
                meter.lap("backward")
                step_loss += loss.detach()

            # TODO clip_grad_norm: (optional) clip the norm of the gradients over all ranks' weights
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=step_loss)
            profiler.step()
            if checkpoints.ends_after(meter.step):
                return  # saved: another process continues

        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast))
            checkpoints.keep_best(net)
    profiler.stop()
    if cfg.save_weights:
        # TODO full_state_dict: (optional) gather the full state dict on rank 0 only
        full_state = net.state_dict()
        if run.rank == 0:
            run.save_weights(full_state)
    # TODO sharded_checkpoint: each rank writes its part of a checkpoint if the config requests it


def mesh_of(run, device):
    """Return a mesh with one row of ranks; for "hybrid" two rows, each with a full network."""
    rows = 2 if run.config.shard == "hybrid" else 1
    shape = (rows, run.world_size // rows)[rows == 1 :]
    return init_device_mesh(device.type, shape, mesh_dim_names=("copy", "shard")[rows == 1 :])


def training_state(net, optimizer, epochs=0):
    """Return the content of a checkpoint: weights, optimizer state and completed epochs."""
    weights, optimizer_state = state_dict.get_state_dict(net, optimizer)
    return {"model_state_dict": weights, "optim_state_dict": optimizer_state, "epochs": epochs}


def batches_of_rank(sets, run, device):
    """Return this rank's sampler, training batches and validation batches."""
    cfg = run.config
    loading = {"num_workers": cfg.workers, "persistent_workers": cfg.persistent_workers,
               "prefetch_factor": cfg.prefetch_factor if cfg.workers else None,
               "pin_memory": cfg.pin_memory}  # fmt: skip
    sampler = DistributedSampler(sets.train, run.world_size, run.rank, seed=cfg.seed)
    # With shards, forward is a collective: all ranks need the same number of batches.
    equal = len(sets.val) - len(sets.val) % run.world_size
    val_sampler = range(run.rank, equal, run.world_size)
    share = cfg.batch_size // run.world_size
    return sampler, *loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )


if __name__ == "__main__":
    with recording() as run:
        main(run)
