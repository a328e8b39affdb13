"""Train one network on several devices at once: its layers shared out, or one after the other.

Day 4's second script. Ranks that see the same images share out every MLP (`tensor`), or each keeps
some of the blocks and sends on what they give (`pipeline`). What you write is at the TODOs.
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
from course.training.ranks import pipelines
from course.training.ranks.group import joined, validate
from course.training.recorder import recording


def main(run):
    cfg = run.config
    torch.manual_seed(cfg.seed)  # every rank starts from the same weights
    precision.set_tf32(cfg.precision == "tf32")
    device = joined(run)
    copies, mates = mesh_of(run, device)
    group, copy, how_many = None, run.rank, run.world_size
    # >>> TODO 29, day 4: ranks that share one network see the same images; copies see others
    if copies:
        group, copy, how_many = copies.get_group(), copies.get_local_rank(), copies.size()
    # --- before
    # <<<

    sets = image_sets(cfg)
    sampler, train_batches, val_batches = shared(sets, cfg, device, copy, how_many)
    net = models.create(cfg.model, sets.classes, cfg.image_px)
    torch.manual_seed(cfg.seed + copy)  # but crops of its own
    autocast = torch.autocast(device.type, HALF.get(cfg.precision), enabled=cfg.precision in HALF)
    criterion = partial(loss_of, label_smoothing=cfg.label_smoothing)

    # >>> TODO 30, day 4: of every MLP this rank keeps its share
    for block in models.blocks(net) if cfg.tensor > 1 else []:
        if hasattr(block, "mlp"):  # those that convolve have none
            block.mlp = SharedMlp(block.mlp, mates)
    # --- before
    # <<<
    schedule = None
    if cfg.pipeline and run.world_size > 1:
        numbers, count = [run.rank], run.world_size
        # >>> TODO 34, day 4: as many stages as the schedule wants, and the numbers of this rank's
        numbers, count = pipelines.numbers_of(cfg.pipeline, run.rank, run.world_size)
        # --- before
        # <<<
        parts = pipelines.parts(net, count, cfg.cut, cfg.image_px)
        micro_batches = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)
        # >>> TODO 33, day 4: keep the parts that are this rank's, as stages of a pipeline
        net = nn.ModuleList(pipelines.Stage(parts[number], autocast) for number in numbers)
        stages = [PipelineStage(own, at, count, device) for own, at in zip(net, numbers)]
        schedule = ScheduleGPipe(stages[0], micro_batches, loss_fn=criterion)
        # --- before
        # <<<
        # >>> TODO 34, day 4: which work in the order that the config names
        schedule = pipelines.schedule_of(cfg.pipeline, stages, micro_batches, criterion)
        # --- before
        # <<<
    layout = torch.channels_last if cfg.channels_last and not cfg.shard else torch.preserve_format
    model = net = net.to(device, memory_format=layout)
    # >>> TODO 32, day 4: copies share out what a rank keeps once more, block by block
    if cfg.shard and how_many > 1:
        for unit in models.units(net, cfg.unit_blocks):
            fully_shard(unit, mesh=copies)
        fully_shard(net, mesh=copies)
    elif how_many > 1:
        model = DDP(net, process_group=group)
    # --- before
    # if how_many > 1:
    #     model = DDP(net, process_group=group)
    # <<<
    optimizer = optimizers.create(net.parameters(), cfg)
    optimizers.schedule(optimizer, cfg)
    profiler = torch.profiler.profile(
        schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace, record_shapes=True
    )
    profiler.start()

    meter = Meter(run, device)
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
                loss = passed_on(schedule, images, labels)
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


class SharedMlp(nn.Module):
    """A rank's share of an MLP: some of its hidden channels."""

    def __init__(self, mlp, ranks):
        super().__init__()
        self.fc1, self.act, self.fc2, self.group = mlp.fc1, mlp.act, mlp.fc2, ranks.get_group()
        # >>> TODO 30, day 4: what makes these channels, what takes them, and one last bias for all
        self.fc1.weight = share(self.fc1.weight, ranks, dim=0)
        self.fc1.bias = share(self.fc1.bias, ranks, dim=0)
        self.fc2.weight = share(self.fc2.weight, ranks, dim=1)
        if ranks.get_local_rank() > 0:
            self.fc2.bias = None
        # --- before
        # <<<

    def forward(self, features):
        features = Entry.apply(features, self.group)
        result = self.fc2(self.act(self.fc1(features)))
        # >>> TODO 30, day 4: of which each rank has a part
        return Exit.apply(result, self.group)
        # --- before
        # return result
        # <<<


class Exit(torch.autograd.Function):
    """The sum of what the ranks of a group have; each part of a sum has the sum's gradient."""

    @staticmethod
    def forward(ctx, result, group):
        result = result.clone()
        # >>> TODO 30, day 4: the sum
        distributed.all_reduce(result, group=group)
        # --- before
        # <<<
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Entry(torch.autograd.Function):
    """Features that all ranks of a group have, and each rank's part of their gradient."""

    @staticmethod
    def forward(ctx, features, group):
        ctx.group = group
        return features.view_as(features)

    @staticmethod
    def backward(ctx, gradient):
        # >>> TODO 31, day 4: which is whole once all parts are added up
        gradient = gradient.clone()
        distributed.all_reduce(gradient, group=ctx.group)
        # --- before
        # <<<
        return gradient, None


def share(weight, ranks, dim):
    """This rank's part of a weight, which is cut along one of its dimensions."""
    return nn.Parameter(weight.detach().chunk(ranks.size(), dim)[ranks.get_local_rank()].clone())


def loss_of(scores, labels, label_smoothing):
    """The mean over images, in fp32 whatever the scores are in."""
    return nn.functional.cross_entropy(scores.float(), labels, label_smoothing=label_smoothing)


def passed_on(schedule, images, labels):
    """Both passes of a batch through all stages, in micro-batches; the loss, for every rank."""
    losses = []
    schedule.step(images, target=labels, losses=losses)
    loss = torch.stack(losses).mean() if losses else torch.zeros((), device=images.device)
    distributed.broadcast(loss, distributed.get_world_size() - 1)
    return loss


def mesh_of(run, device):
    """Ranks in a grid: this one's like in all copies of the network, and its mates in one copy."""
    if run.world_size == 1:
        return None, None
    sharing = run.world_size if run.config.pipeline else run.config.tensor
    rows = run.world_size // sharing
    mesh = init_device_mesh(device.type, (rows, sharing), mesh_dim_names=("copy", "share"))
    return mesh["copy"], mesh["share"]


def shared(sets, cfg, device, copy, copies):
    """The sampler of a copy's share of images; its batches for training, and for validation."""
    loading = {name: getattr(cfg, name) for name in ("persistent_workers", "pin_memory")}
    ahead = cfg.prefetch_factor if cfg.workers else None
    loading |= {"num_workers": cfg.workers, "prefetch_factor": ahead}
    sampler = DistributedSampler(sets.train, copies, copy, seed=cfg.seed)
    share = cfg.batch_size // copies
    equal = len(sets.val) - len(sets.val) % (share * copies)  # in a pipeline all batches are whole
    val_sampler = range(copy, equal, copies)
    return sampler, *loaders(
        sets, cfg, device, share, sampler=sampler, val_sampler=val_sampler, **loading
    )


if __name__ == "__main__":
    with recording() as run:
        main(run)
