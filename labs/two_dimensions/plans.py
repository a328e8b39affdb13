"""Plans for a training on several GPUs: what each needs, and the fastest one that fits.

The estimates are for transformers in mixed precision with AdamW: weights, gradients and two moments
in fp32, activations in 16 bits, attention by one operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SHARE = 0.9  # of the memory: the rest is for libraries, and for gaps between tensors
WEIGHT, ACTIVATION = 4, 2  # bytes
STORED = 4 * WEIGHT  # bytes per weight: itself, its gradient, two moments
# Bytes that a block keeps per token and unit of width until backward; tensor parallelism divides
# only the second part. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.
WHOLE, DIVIDED = 10, 24


class Network(NamedTuple):
    """The sizes of a transformer."""

    weights: int
    layers: int
    heads: int
    width: int
    tokens: int  # of a sequence

    @property
    def flop(self) -> float:
        """The FLOP of one sequence's forward and backward pass (arXiv:2204.02311, appendix B)."""
        return self.tokens * (6 * self.weights + 12 * self.layers * self.width * self.tokens)


class Machines(NamedTuple):
    """The GPUs, and their links."""

    gpus: int
    per_node: int
    memory_gib: float
    tflop_s: float  # that training reaches on one busy GPU
    node_gb_s: float  # that a GPU sends to others of its node
    network_gb_s: float  # that it sends to other nodes

    def link(self, span: int) -> float:
        """Return the bytes/s among this number of neighbouring ranks."""
        return 1e9 * (self.node_gb_s if span <= self.per_node else self.network_gb_s)


class Plan(NamedTuple):
    """How GPUs share a training: copies × stages × tensor is their number."""

    copies: int  # with different sequences
    shard: bool = False  # FSDP2 over the copies, instead of DDP
    tensor: int = 1  # neighbouring ranks that share each layer
    stages: int = 1  # of a pipeline
    passes: int = 1  # micro-batches of a step

    def __str__(self) -> str:
        data = f"{'FSDP2' if self.shard else 'DDP'} {self.copies}"
        parts = {data: self.copies, f"tensor {self.tensor}": self.tensor}
        parts[f"pipeline {self.stages}"] = self.stages
        return " × ".join(name for name, size in parts.items() if size > 1) or "one GPU"


def possible_plans(network: Network, machines: Machines, batch: int) -> Iterator[Plan]:
    """Yield the plans that divide heads, layers and the batch evenly, the simplest first."""
    for stages in _divisors(machines.gpus, network.layers):
        for tensor in _divisors(machines.gpus // stages, network.heads):
            copies = machines.gpus // stages // tensor
            if batch % copies:
                continue
            for passes in _divisors(batch // copies):
                yield Plan(copies, False, tensor, stages, passes)
                if copies > 1 and stages == 1:  # as in the course's scripts
                    yield Plan(copies, True, tensor, stages, passes)


def peak_gib(network: Network, plan: Plan, batch: int) -> float:
    """Estimate a GPU's memory in GiB."""
    return sum(memory_bytes(network, plan, batch)) / 2**30


def memory_bytes(network: Network, plan: Plan, batch: int) -> tuple[float, float]:
    """Estimate the bytes that a GPU stores (weights and what belongs to them), and keeps until
    backward (activations)."""
    part = network.weights / plan.tensor / plan.stages
    stored = STORED * part
    if plan.shard:  # the computing block's weights are gathered, and the next one's
        stored = stored / plan.copies + 2 * WEIGHT * part / network.layers
    # The first stage keeps as many passes as there are stages (1F1B).
    tokens = network.tokens * batch / plan.copies / plan.passes * min(plan.stages, plan.passes)
    kept = tokens * network.width * network.layers / plan.stages * (WHOLE + DIVIDED / plan.tensor)
    return stored, kept


def step_s(network: Network, machines: Machines, plan: Plan, batch: int, knee: float) -> float:
    """Estimate the seconds of a step.

    Args:
        knee: sequences in a pass that keep one GPU busy; a pass of fewer takes as long.
    """
    size = batch / plan.copies / plan.passes
    turns = plan.passes + plan.stages - 1  # of a stage, with those in which it waits
    busy = max(size, knee * plan.tensor)  # a part of a layer needs more sequences
    speed = machines.tflop_s * 1e12 * plan.tensor * plan.stages
    compute = turns * network.flop * busy / speed

    features = ACTIVATION * size * network.tokens * network.width  # bytes
    # After attention and after the MLP, in forward and in backward: nothing else runs then.
    sums = 4 * network.layers / plan.stages * _sum_bytes(features, plan.tensor)
    exposed = turns * sums / machines.link(plan.tensor)
    if plan.stages > 1:
        exposed += turns * 2 * features / machines.link(machines.gpus)
    # DDP averages once, in the last pass, whose backward is two thirds of it. FSDP2 gathers the
    # weights in every forward and backward pass, and reduces the gradients.
    data = _sum_bytes(WEIGHT * network.weights / plan.tensor / plan.stages, plan.copies)
    sending = data / machines.link(plan.copies * plan.tensor)
    if plan.shard:
        return exposed + max(compute, 1.5 * plan.passes * sending)
    return exposed + compute + max(0, sending - 2 / 3 * compute / turns)


def choose_plan(network: Network, machines: Machines, batch: int, knee: float) -> Plan | None:
    """Return the fastest plan that fits, of equal ones the simplest; None if none fits.

    Args:
        batch: sequences of an update, over all GPUs.
        knee: as in `step_s`.

    Raises:
        ValueError: a size is below 1, heads do not divide the width, or no plan divides the batch.
    """
    sizes = network._asdict() | machines._asdict() | {"batch": batch, "knee": knee}
    for name, value in sizes.items():
        if not value > 0 or name not in REALS and (value < 1 or value != int(value)):
            expected = "more than 0" if name in REALS else "a whole number from 1"
            raise ValueError(f"{name}={value}: expected {expected}")
    if network.width % network.heads:
        divisors = ", ".join(map(str, _divisors(network.width)))
        raise ValueError(
            f"heads={network.heads} cannot share width={network.width} evenly: choose {divisors}"
        )
    possible = [*possible_plans(network, machines, batch)]
    if not possible:
        raise ValueError(
            f"gpus={machines.gpus}: batch={batch}, heads={network.heads} and "
            f"layers={network.layers} cannot be divided among them: choose a batch that is a "
            f"multiple of {machines.gpus}"
        )
    limit = SHARE * machines.memory_gib
    fitting = [plan for plan in possible if peak_gib(network, plan, batch) <= limit]
    return min(fitting, key=lambda plan: step_s(network, machines, plan, batch, knee), default=None)


REALS = ("memory_gib", "tflop_s", "node_gb_s", "network_gb_s", "knee")


def _sum_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring's all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size


def _divisors(*numbers: int) -> list[int]:
    """Return the common divisors."""
    return [part for part in range(1, min(numbers) + 1) if not any(x % part for x in numbers)]
