"""Predict the peak memory of a rank, without a GPU and without the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course import Config
from course.training import memory_prediction as fake
from course.training import models, optimizers
from labs._compat import FSDPMemTracker
from trainspeed import memory

KINDS = {  # of PyTorch's FSDPMemTracker
    "weights_gib": ("Sharded Param", "Buffer"),
    "gradients_gib": ("Sharded Grad",),
    "optimizer_gib": ("OptState",),
    "gathered_gib": ("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter"),
    "activations_gib": ("Activation",),
    "other_gib": ("Temp", "Inputs"),
}


@dataclass(frozen=True)
class ShardPrediction:
    """Peak memory of one rank, and what fills it at that moment, in GiB.

    `gathered_gib` has the full weights and gradients of units in use, and the messages.
    """

    peak_gib: float
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    gathered_gib: float
    activations_gib: float
    other_gib: float


@contextmanager
def fake_mesh(ranks: int) -> Iterator[DeviceMesh]:
    """Provide a process group of several ranks in this process; messages to others are lost."""
    distributed.init_process_group("fake", rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        distributed.destroy_process_group()


def predict_rank_memory(config: Config, ranks: int) -> ShardPrediction:
    """Predict the peak GiB of rank 0 of a training on several GPUs, without computing it.

    The step runs on fake tensors in a fake process group, and PyTorch's FSDPMemTracker counts the
    tensors that are alive. For DDP, this is `predict_memory` of the rank's images, with all
    gradients in DDP's buckets.

    Raises:
        ValueError: the ranks do not divide the batch.
    """
    share, remainder = divmod(config.batch_size, ranks)
    if remainder:
        raise ValueError(f"batch_size={config.batch_size}: expected a multiple of {ranks} ranks")
    local = replace(
        config, batch_size=share, shard="", gather_bf16=False, prefetch=0, unit_blocks=1
    )
    if not config.shard or ranks == 1:
        return _predict_ddp(local, ranks)
    # With a policy, weights and images are in bf16, so that autocast has nothing to do.
    precision = "fp32" if config.gather_bf16 else local.precision
    local = replace(local, channels_last=False, precision=precision)
    with fake_mesh(ranks) as mesh, fake.fake_step(local) as step:
        _shard(step, config, mesh)
        gib = _track_peak(step)
    parts = {name: sum(gib.get(kind, 0) for kind in kinds) for name, kinds in KINDS.items()}
    return ShardPrediction(peak_gib=gib["Total"], **parts)


def _predict_ddp(config: Config, ranks: int) -> ShardPrediction:
    single = fake.predict_memory(config)
    gradients = single.gradients_gib
    if ranks > 1:
        with torch.device("meta"):
            model = models.create(config.model, fake.CLASSES, config.image_px)
        gradients = 4 * models.parameter_count(model) / 2**30  # the buckets
    return ShardPrediction(
        peak_gib=single.peak_gib - single.gradients_gib + gradients,
        weights_gib=single.weights_gib,
        gradients_gib=gradients,
        optimizer_gib=single.optimizer_gib,
        gathered_gib=0.0,
        activations_gib=single.activations_gib,
        other_gib=single.other_gib,
    )


def _shard(step: fake.FakeStep, config: Config, mesh: DeviceMesh) -> None:
    """Shard the units, then the rest of the network, and create the optimizer."""
    policy = MixedPrecisionPolicy()
    if config.gather_bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in models.units(step.model, config.unit_blocks):
        fully_shard(
            unit, mesh=mesh, mp_policy=policy, reshard_after_forward=config.shard != "zero2"
        )
    fully_shard(step.model, mesh=mesh, mp_policy=policy)
    plain = replace(config, fused=False)
    step.optimizer = optimizers.create(step.model.parameters(), plain)
    if config.channels_last:
        step.others = [step.inputs]
        step.inputs = step.inputs.to(memory_format=torch.channels_last)


def _track_peak(step: fake.FakeStep) -> dict[str, float]:
    tracker = FSDPMemTracker(step.model, step.optimizer)
    tracker.track_inputs((*step.tensors,))
    memory.update_once(step.optimizer)
    with memory.tracked(step, tracker) as gib:
        step.run()
    return gib
