"""Train one network on several devices, with tensor or pipeline parallelism.

Day 4's second script. Ranks that get the same images each hold a part of every MLP (`tensor`), or
some of the blocks, whose outputs they send on (`pipeline`). You write code at the TODOs.
"""

from functools import partial

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course.data.loader import image_sets, loaders, normalised
from course.training import models, optimizers, precision, profiling
from course.training.meter import Meter
from course.training.precision import HALF
from course.training.rank_group import join_group, validate
from course.training.recorder import recording
from labs.pipeline import pipelines
from labs.pipeline.passes import Passes


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # the same initial weights on every rank
    precision.set_tf32(cfg.precision == "tf32")
    device = join_group(run)
    copies, tensor_group = mesh_of(run, device)
    # All stages of a pipeline are one copy of the network, and get the same images.
    group, copy, copy_count = None, *((0, 1) if cfg.pipeline else (run.rank, run.world_size))
    # TODO device_mesh: ranks of one copy get the same images, different copies different images

    sets = image_sets(cfg)
    cfg = run.complete_epochs(sets)  # with the number of steps, if an epoch is all images
    sampler, train_batches, val_batches = batches_of_copy(sets, cfg, device, copy, copy_count)
    net = models.create(cfg.model, sets.classes, cfg.image_px)
    torch.manual_seed(cfg.seed + copy)  # different crops in each copy
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    criterion = partial(loss_of, label_smoothing=cfg.label_smoothing)

    # TODO column_parallel: keep this rank's part of every MLP
    schedule = None
    if cfg.pipeline and run.world_size > 1:
        numbers, count = [run.rank], run.world_size
        # TODO pipeline_schedule: get the number of stages, and the numbers of this rank's stages
        parts = pipelines.split(net, count, cfg.stage_split, cfg.image_px)
        micro_batches = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)
        # TODO pipeline_stages: keep this rank's parts as stages of a pipeline
        # TODO pipeline_schedule: run the stages by the schedule that the config names
    layout = torch.channels_last if cfg.channels_last and not cfg.shard else torch.preserve_format
    model = net = net.to(device, memory_format=layout)
    # TODO mesh_2d: shard this rank's part over the copies, block by block
    if copy_count > 1:
        model = DDP(net, process_group=group)
    optimizer = optimizers.create(net.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device, hooks=[Passes(run)])
    for epoch in range(cfg.epochs):
        net.train()
        sampler.set_epoch(epoch)
        for images, labels in meter.steps(train_batches, epoch):
            images = normalised(images.to(device, non_blocking=cfg.non_blocking))
            labels = labels.to(device, non_blocking=cfg.non_blocking)
            if cfg.channels_last:
                images = images.to(memory_format=torch.channels_last)
            meter.lap("load")

            if schedule:
                loss = run_pipeline(schedule, images, labels)
            else:
                with autocast:
                    scores = model(images)
                    meter.lap("forward")
                    loss = criterion(scores, labels)
                meter.lap("loss")
                loss.backward()
            meter.lap("backward")

            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            meter.lap("optimizer", loss=loss)
            profiler.step()

        if cfg.val_steps:
            run.epoch(**validate(model, val_batches, cfg, device, autocast, schedule))
    profiler.stop()


class TensorParallelMlp(nn.Module):
    """One rank's part of an MLP: some of its hidden channels."""

    def __init__(self, mlp, ranks):
        super().__init__()
        self.fc1, self.act, self.fc2, self.group = mlp.fc1, mlp.act, mlp.fc2, ranks.get_group()
        # TODO column_parallel: split fc1 by rows and fc2 by columns; keep fc2's bias on one rank

    def forward(self, features):
        features = Entry.apply(features, self.group)
        result = self.fc2(self.act(self.fc1(features)))
        # TODO column_parallel: add up the results of all ranks
        return result


class Exit(torch.autograd.Function):
    """Sum over the ranks of a group; in backward every part gets the gradient of the sum."""

    @staticmethod
    def forward(ctx, result, group):
        result = result.clone()
        # TODO column_parallel: sum over the group, in place
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Entry(torch.autograd.Function):
    """Identity in forward; in backward, sum the ranks' parts of the gradient."""

    @staticmethod
    def forward(ctx, features, group):
        ctx.group = group
        return features.view_as(features)

    @staticmethod
    def backward(ctx, gradient):
        # TODO input_gradient: sum the parts of the gradient over the group
        return gradient, None


def share(weight, ranks, dim):
    """Return this rank's part of a weight, split along one dimension."""
    return nn.Parameter(weight.detach().chunk(ranks.size(), dim)[ranks.get_local_rank()].clone())


def loss_of(scores, labels, label_smoothing):
    """Return the mean loss over images, computed in fp32."""
    return nn.functional.cross_entropy(scores.float(), labels, label_smoothing=label_smoothing)


def run_pipeline(schedule, images, labels):
    """Run forward and backward through all stages; return the loss on every rank."""
    losses, first = [], [images] * (distributed.get_rank() == 0)  # only for the first stage
    schedule.step(*first, target=labels, losses=losses)
    loss = torch.stack(losses).mean() if losses else torch.zeros((), device=images.device)
    distributed.broadcast(loss, distributed.get_world_size() - 1)
    return loss


def mesh_of(run, device):
    """Return the mesh over copies of the network, and the mesh of the ranks that share a copy."""
    if run.world_size == 1:
        return None, None
    sharing = run.world_size if run.config.pipeline else run.config.tensor
    rows = run.world_size // sharing
    mesh = init_device_mesh(device.type, (rows, sharing), mesh_dim_names=("copy", "share"))
    return mesh["copy"], mesh["share"]


def batches_of_copy(sets, cfg, device, copy, copies):
    """Return this copy's sampler, training batches and validation batches."""
    loading = {name: getattr(cfg, name) for name in ("persistent_workers", "pin_memory")}
    ahead = cfg.prefetch_factor if cfg.workers else None
    loading |= {"num_workers": cfg.workers, "prefetch_factor": ahead}
    sampler = DistributedSampler(sets.train, copies, copy, seed=cfg.seed)
    share = cfg.batch_size // copies
    equal = len(sets.val) - len(sets.val) % (share * copies)  # pipelines need full batches
    val_sampler = range(copy, equal, copies)
    return sampler, *loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )


if __name__ == "__main__":
    with recording() as run:
        main(run)
