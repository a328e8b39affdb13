"""Peak memory of a rank, told without a GPU and without the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course.config import GIB, Config
from course.training import memory_prediction as fake
from course.training import models, optimizers

KINDS = {  # of PyTorch's FSDPMemTracker
    "weights_gib": ("Sharded Param", "Buffer"),
    "gradients_gib": ("Sharded Grad",),
    "optimizer_gib": ("OptState",),
    "gathered_gib": ("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter"),
    "activations_gib": ("Activation",),
    "other_gib": ("Temp", "Inputs"),
}


@dataclass(frozen=True)
class Share:
    """Peak memory of one of several ranks, and what holds it at that moment, in GiB.

    `gathered_gib` is what other ranks keep, and is there for a while: whole weights of the units in
    use, whole gradients, and the messages themselves. Of DDP it is the buckets.
    """

    peak_gib: float
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    gathered_gib: float
    activations_gib: float
    other_gib: float


@contextmanager
def pretended(ranks: int) -> Iterator[DeviceMesh]:
    """A process group of so many ranks in this one process: whatever is sent to others is lost.

    Raises:
        ValueError: this process has joined a group already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        raise ValueError("this process has joined a process group: pretend one in another process")
    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        distributed.destroy_process_group()


def predict(config: Config, ranks: int) -> Share:
    """Peak GiB of rank 0 of a config's training on so many GPUs; nothing is computed or sent.

    The step runs on fake tensors under a pretended process group, and PyTorch's FSDPMemTracker
    adds up what is alive. Of DDP it is what `memory.predict` tells for the rank's images, with the
    gradients whole in their buckets from the first step on.

    Raises:
        ValueError: a batch that ranks cannot share evenly, or a step that PyTorch refuses.
    """
    share, rest = divmod(config.batch_size, ranks)
    if rest:
        raise ValueError(f"batch_size={config.batch_size} is no multiple of {ranks} ranks")
    own = replace(config, batch_size=share, shard="", policy=False, prefetch=0, unit_blocks=1)
    if not config.shard or ranks == 1:
        return _replicated(own, ranks)
    # With a policy weights and images are in bf16 themselves, so that autocast has nothing to do.
    own = replace(own, channels_last=False, precision="fp32" if config.policy else own.precision)
    with pretended(ranks) as mesh, fake.fake_step(own) as step:
        _share_out(step, config, mesh)
        held = _tracked(step, config)
    found = {name: sum(held.get(kind, 0) for kind in kinds) for name, kinds in KINDS.items()}
    return Share(peak_gib=held["Total"], **found)


def _replicated(config: Config, ranks: int) -> Share:
    found = fake.predict(config)
    buckets = 4 * _parameters(config) / GIB if ranks > 1 else found.gradients_gib
    return Share(
        found.peak_gib - found.gradients_gib + buckets,
        found.weights_gib,
        buckets,
        found.optimizer_gib,
        0.0,
        found.activations_gib,
        found.other_gib,
    )


def _parameters(config: Config) -> int:
    with torch.device("meta"):
        model = models.create(config.model, fake.CLASSES, config.image_px)
    return models.parameter_count(model)


def _share_out(step: fake.FakeStep, config: Config, mesh: DeviceMesh) -> None:
    """As the solution does: the units, what is left, and then the optimizer."""
    policy = MixedPrecisionPolicy()
    if config.policy:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in models.units(step.model, config.unit_blocks):
        fully_shard(
            unit, mesh=mesh, mp_policy=policy, reshard_after_forward=config.shard != "zero2"
        )
    fully_shard(step.model, mesh=mesh, mp_policy=policy)
    plain = replace(config, fused=False)
    step.optimizer = optimizers.create(step.model.parameters(), plain)
    if config.channels_last:
        step.images = step.images.to(memory_format=torch.channels_last)


def _tracked(step: fake.FakeStep, config: Config) -> dict[str, float]:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    tracker = FSDPMemTracker(step.model, step.optimizer)
    tracker.track_inputs((step.images, step.loaded, step.labels))
    tracker.memory_tracking = {}  # as in course.training.memory_prediction
    step.between_passes = tracker.reset_mod_stats
    step.update_once()
    with tracker:
        step.run()
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {getattr(kind, "value", kind): size / GIB for kind, size in snapshot.items()}
