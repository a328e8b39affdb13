"""What a small run notes besides the evidence of its record, and what it saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from course.runs.evidence import NOT_APPLICABLE, NotApplicable


@dataclass
class ShardCall:
    """A call of fully_shard, with PyTorch's defaults."""

    of: str  # "the network" or "units"
    weights: int  # tensors in the modules that the call covers
    types: str  # the policy's param_dtype and reduce_dtype; "" without a policy
    reshard: bool
    mesh: list
    groups: list[str]  # names of the mesh's process groups


@dataclass
class CompileCall:
    """A call of torch.compile."""

    mode: str
    around_ddp: bool
    in_the_loop: bool


@dataclass(slots=True)  # so that a misspelt name raises an error
class Notes:
    """Notes of one rank, which notes-RANK.json adds to its record.

    What a process has not reached is NOT_APPLICABLE.
    """

    is_restarted: bool = False  # whether another process of the run was interrupted before
    is_marked: bool = False  # whether this one marks the run as interrupted
    first: int | NotApplicable = NOT_APPLICABLE  # number of the first step
    skipped: list[int] = field(default_factory=list)  # images that each epoch skips at its start
    # The images that the samplers choose, in each pass and in each epoch's validation.
    chosen_train: list[list[int]] = field(default_factory=list)
    chosen_val: list[list[int]] = field(default_factory=list)
    sampler_seed: str | NotApplicable = NOT_APPLICABLE  # whether the training sampler's is chosen
    worker_init_fn: str | NotApplicable = NOT_APPLICABLE  # "present" if the script has one
    batches: list[list] = field(default_factory=list)  # by step: images, means of pixels and labels
    random: list[int] = field(default_factory=list)  # by step: a checksum of the random state
    layouts: list[str] = field(default_factory=list)  # by step: of the images
    # By update: of each group the settings, and how many filters and vectors it updates.
    groups: list[list] = field(default_factory=list)
    gradients: dict[str, float] = field(default_factory=dict)  # by step: their norm at the update
    # At the first update: norms of weights, optimizer's state and buffers; each weight's decay.
    began: dict[str, float] | NotApplicable = NOT_APPLICABLE
    decay: dict[str, float] | NotApplicable = NOT_APPLICABLE
    weights: list[list] = field(default_factory=list)  # at the end: shape, sum and norm of each
    shapes: dict[str, list[int]] | NotApplicable = NOT_APPLICABLE  # of the weights, at first
    ddp_devices: list[str] = field(default_factory=list)  # that each DDP gets
    ddp_ranks: str | NotApplicable = NOT_APPLICABLE  # over which the last DDP averages
    compile_calls: list[CompileCall] = field(default_factory=list)
    compiled_layers: int = 0  # that compiled graphs computed in training
    graphs: list[int] = field(default_factory=list)  # for each graph, the step that first used it
    shard_calls: list[ShardCall] = field(default_factory=list)
    prefetch: dict[str, str] = field(default_factory=dict)  # the units that each unit gathers ahead
    autocast: dict[str, bool] = field(default_factory=dict)  # with cfg.gather_bf16: where it was on
    repeated: list[int] = field(default_factory=list)  # blocks that backward computed again
    stages: list[str] | NotApplicable = NOT_APPLICABLE  # of this rank, "0 of 2"
    schedule: str | NotApplicable = NOT_APPLICABLE  # the pipeline's
    scale_grads: bool | NotApplicable = NOT_APPLICABLE  # its argument
    saves: int = 0  # calls of torch.save
    # For each renamed checkpoint, whether fsync had written all of it before, or that it came from
    # outside the run's folder, which may be another file system.
    renamed: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # PyTorch's, of the process
    traces: list[dict[str, bool]] = field(default_factory=list)  # of each: shapes, warm-up


@dataclass
class Files:
    """What a run saved.

    weights: for each tensor in weights.pt its shape, type, sum and norm, or why it has none.
    checkpoint: the shapes in the checkpoint that ranks wrote together, and how many wrote it.
    state: the content of the newest of its own checkpoints, by shape and sum, because scripts
    choose the names; each with the part of the checkpoint that has it.
    """

    weights: dict[str, dict[str, Any]] | str | NotApplicable = NOT_APPLICABLE
    checkpoint: dict[str, int] | NotApplicable = NOT_APPLICABLE
    state: dict[str, str] = field(default_factory=dict)
