"""The schema of a run's evidence: what its steps really did, as observers below autocast noted it.

`course.training.evidence` fills these classes, and checks and labs read them. A name that a class
lacks raises an error on both sides. NOT_APPLICABLE is the only value that means "nothing to
compare": a run without a process group has no timeout of its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_type_hints

Counts = Mapping[str, int]


class _NotApplicable(Enum):
    NOT_APPLICABLE = "not applicable"

    def __bool__(self) -> bool:
        raise TypeError("evidence may be NOT_APPLICABLE: compare it with `is`")

    __repr__ = __str__ = lambda self: self.name


NOT_APPLICABLE = _NotApplicable.NOT_APPLICABLE
NotApplicable = Literal[_NotApplicable.NOT_APPLICABLE]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Ddp:
    """Settings of the DDP wrapper whose forward pass ran."""

    bucket_mb: float
    find_unused: bool
    # Old recordings lack these.
    broadcast_buffers: bool | NotApplicable = NOT_APPLICABLE
    ranks: list[int] | NotApplicable = NOT_APPLICABLE  # of its group


@dataclass(frozen=True)
class Operators:
    """What a step, or a validation, called below autocast.

    Counts are numbers of calls: of convolutions by number format, layout and device; of BatchNorms
    by whose statistics they used; of collectives by name, and of all-reduces by their ranks.
    """

    forward_types: Counts = field(default_factory=dict)
    backward_types: Counts = field(default_factory=dict)
    devices: Counts = field(default_factory=dict)
    input_layouts: Counts = field(default_factory=dict)
    weight_layouts: Counts = field(default_factory=dict)
    statistics: Counts = field(default_factory=dict)  # "batch" or "running"
    loss_types: Counts = field(default_factory=dict)
    recomputed: Counts = field(default_factory=dict)  # forward operators in backward, by name
    attention: Counts = field(default_factory=dict)  # fused operators in forward, by name
    collectives: Counts = field(default_factory=dict)
    forward_collectives: Counts = field(default_factory=dict)
    backward_collectives: Counts = field(default_factory=dict)
    forward_groups: Counts = field(default_factory=dict)
    backward_groups: Counts = field(default_factory=dict)
    # By phase: the number of all-gathers between two stretches of compute, in order.
    gathers: Mapping[str, list[int]] = field(default_factory=dict)
    gathered_types: Counts = field(default_factory=dict)
    reduced_types: Counts = field(default_factory=dict)
    autocast_in_backward: bool | NotApplicable = NOT_APPLICABLE
    # The gradient where backward starts: 1, or a scale; and [images, gradient] by micro-batch.
    loss_gradient: float | NotApplicable = NOT_APPLICABLE
    passes: list[list[float]] = field(default_factory=list)
    kept_gib: float | NotApplicable = NOT_APPLICABLE  # that forward saved for backward
    mixed: float | NotApplicable = NOT_APPLICABLE  # share of images whose label has several classes
    ddp: Ddp | NotApplicable = NOT_APPLICABLE


@dataclass(frozen=True)
class Group:
    """The process group that a rank joined."""

    backend: str
    timeout_s: float | NotApplicable = NOT_APPLICABLE


@dataclass(frozen=True)
class Loader:
    """The arguments of the training DataLoader; NOT_APPLICABLE for those that it lacks."""

    num_workers: int | NotApplicable = NOT_APPLICABLE
    persistent_workers: bool | NotApplicable = NOT_APPLICABLE
    prefetch_factor: int | NotApplicable = NOT_APPLICABLE
    pin_memory: bool | NotApplicable = NOT_APPLICABLE
    drop_last: bool | NotApplicable = NOT_APPLICABLE
    in_order: bool | NotApplicable = NOT_APPLICABLE
    streams: bool | NotApplicable = NOT_APPLICABLE  # whether its dataset is iterable


@dataclass(frozen=True)
class Bytes:
    """Bytes that a rank keeps: weights and optimizer at the end, gradients at the first update."""

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class Spread:
    """How a network's weights are distributed over the ranks.

    placements: the number of weights by placement: "Shard(dim=0)", or "Replicate() × Shard(dim=0)"
    if the mesh has two dimensions, or "whole" for a weight that is not a DTensor. mesh: the number
    of ranks in each dimension.
    """

    placements: Counts
    mesh: list[int]
    bytes: Bytes


@dataclass(frozen=True)
class Overflow:
    """An overflow that the config planned; skipped: whether its step left the weights alone."""

    skipped: bool | NotApplicable = NOT_APPLICABLE  # before the end of that step


@dataclass(frozen=True)
class Compiled:
    """The compiler's graphs in a run.

    graphs: their number at the end of each epoch's training. warmed_up: at the end of warm-up.
    breaks: the reasons why a graph ended before its function did, each with its number.
    """

    graphs: list[int]
    breaks: Counts
    warmed_up: int | NotApplicable = NOT_APPLICABLE


@dataclass(frozen=True)
class Nccl:
    """NCCL's own report of a run with simulated hosts.

    host_id: of this rank. hosts, ranks_per_host: as NCCL counts them. transports: such as
    "NET/Socket" between hosts and "P2P/IPC" within one.
    """

    host_id: str
    transports: list[str]
    hosts: int | NotApplicable = NOT_APPLICABLE
    ranks_per_host: int | NotApplicable = NOT_APPLICABLE


@dataclass(frozen=True)
class Evidence(Operators):
    """All evidence of one rank; what it has from Operators is of the first step.

    taken, val_taken: the images that the samplers chose, by epoch. share: images of this rank in
    a step. traced: the number of phases of each traced step. held_to_save: bytes that were in use
    while a sharded network was saved. actions: by step, the passes of a pipeline's stages. updates:
    the number of steps by their number of updates. gradient_norm: of this rank's gradients at the
    first update, unless they were scaled. decay: the weight decays of "filters" (and matrices) and
    of "vectors". began_at: the number of steps that earlier processes completed. found, left: the
    checkpoints at the start and at the end. interrupted: what the config's plan did so far.
    problems: what could not be observed. is_complete: whether the run had all its steps and epochs,
    and its recorder ended normally.
    """

    world_size: int | NotApplicable = NOT_APPLICABLE
    device: str | NotApplicable = NOT_APPLICABLE
    group: Group | NotApplicable = NOT_APPLICABLE
    algebra: Mapping[str, str] | NotApplicable = NOT_APPLICABLE
    loader: Loader | NotApplicable = NOT_APPLICABLE
    share: int | NotApplicable = NOT_APPLICABLE
    taken: list[list[int]] | NotApplicable = NOT_APPLICABLE
    val_taken: list[int] | NotApplicable = NOT_APPLICABLE
    later: Operators | NotApplicable = NOT_APPLICABLE
    validation: Operators | NotApplicable = NOT_APPLICABLE
    traced: Counts = field(default_factory=dict)
    held_to_save: int | NotApplicable = NOT_APPLICABLE
    compiled: Compiled | NotApplicable = NOT_APPLICABLE
    actions: Mapping[str, list] | NotApplicable = NOT_APPLICABLE
    nccl: Nccl | NotApplicable = NOT_APPLICABLE
    gradient_norm: float | NotApplicable = NOT_APPLICABLE
    weights_sum: float | NotApplicable = NOT_APPLICABLE
    updates: Counts = field(default_factory=dict)
    spread: Spread | NotApplicable = NOT_APPLICABLE
    decay: Mapping[str, list[float]] = field(default_factory=dict)
    parameters: int | NotApplicable = NOT_APPLICABLE
    overflow: Overflow | NotApplicable = NOT_APPLICABLE
    began_at: int | NotApplicable = NOT_APPLICABLE
    found: list[dict[str, Any]] | NotApplicable = NOT_APPLICABLE
    left: list[dict[str, Any]] | NotApplicable = NOT_APPLICABLE
    interrupted: list[dict[str, Any]] | NotApplicable = NOT_APPLICABLE
    problems: list[str] = field(default_factory=list)
    is_complete: bool = False

    @property
    def is_observed(self) -> bool:
        """Whether the first step was observed: it is not if the config has no warm-up."""
        return bool(self.forward_types or self.passes)  # a GPT has no convolutions


def to_values(part: Any) -> dict[str, Any]:
    """Return a part as JSON's values, without those that equal the class's defaults."""
    values = {f.name: (f, getattr(part, f.name)) for f in fields(part)}
    return {name: _plain(value) for name, (f, value) in values.items() if value != _default(f)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return to_values(value) if is_dataclass(value) else value


def from_values(of: type[Part], values: Any) -> Part:
    """Create a part from JSON's values; null, and names that older versions wrote, are left out.

    Raises:
        ValueError: a value that the class needs is missing.
    """
    known = {}
    for name, part in _parts(of).items():
        value = values.get(name) if isinstance(values, dict) else None
        if part and isinstance(value, list):
            known[name] = [from_values(part, item) for item in value]
        elif value is not None and not (part and value == {}):
            known[name] = from_values(part, value) if part else value
    try:
        return of(**known)
    except TypeError as error:
        raise ValueError(f"incomplete evidence: {error}") from None


@cache
def _parts(of: type) -> dict[str, Any]:
    """Return the names of a class's fields, each with the class of its part, or None."""
    hints = get_type_hints(of)
    return {
        f.name: next(filter(is_dataclass, (hints[f.name], *get_args(hints[f.name]))), None)
        for f in fields(of)
    }


def check_path(path: str, of: type = Evidence) -> None:
    """Check a path such as "later.forward_types", so that an error is raised at import.

    Raises:
        AttributeError: a class lacks a name; the message lists those that it has.
    """
    name, _, rest = path.partition(".")
    parts = _parts(of)
    if name not in parts:
        raise AttributeError(f"{of.__name__} has no {name!r}: it has {', '.join(parts)}")
    if rest and parts[name]:
        check_path(rest, parts[name])
    elif rest:
        raise AttributeError(f"{of.__name__}.{name} has no parts, so {path!r} names none")


def value_at(evidence: Evidence, path: str) -> Any:
    """Return the value at a path; NOT_APPLICABLE if a part on the way is."""
    value: Any = evidence
    for name in path.split("."):
        value = value if value is NOT_APPLICABLE else getattr(value, name)
    return value


def _default(of: Field) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()
