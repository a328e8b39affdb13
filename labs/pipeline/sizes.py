"""Memory of a GPU under data, tensor and pipeline parallelism, computed without a GPU."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course import Config
from course.training import memory_prediction, models
from labs.pipeline import pipelines
from labs.pipeline.schedules import max_in_flight

STATE = 16  # bytes per weight, in fp32: weight, gradient, and AdamW's two means


def rank_memory(config: Config, ranks: int, micro_batches: int) -> pd.DataFrame:
    """Compute what a rank stores under five kinds of parallelism, at the same batch.

    A forward pass on fake tensors counts the activations. What libraries use, gathered weights and
    messages are not counted. Tensor parallelism splits MLPs; a pipeline's stages
    have equal GFLOP, and of its ranks the one that stores most counts.

    Columns: weights_m (millions), state_gib (weights, gradients, AdamW), activations_gib, sum_gib.
    """
    pieces = _measure_pieces(config)
    batch, total = config.batch_size, pieces.sum()
    of_mlps = 1 - 1 / ranks  # the part that other ranks store
    rows = {
        "DDP": (total["weights"], total["saved"] * batch / ranks),
        "FSDP2": (total["weights"] / ranks, total["saved"] * batch / ranks),
        "tensor": (
            total["weights"] - of_mlps * total["mlp_weights"],
            (total["saved"] - of_mlps * total["mlp_saved"]) * batch,
        ),
    }
    begins = pipelines.balance(pieces["gflop"].tolist(), ranks)
    stages = [pieces[a:b].sum() for a, b in pairwise([0, *begins, len(pieces)])]
    for schedule in ("gpipe", "1f1b"):
        counts = max_in_flight(schedule, ranks, micro_batches)
        stored = [
            (stage["weights"], stage["saved"] * batch / micro_batches * count)
            for stage, count in zip(stages, counts)
        ]
        rows[f"pipeline, {schedule}"] = max(stored, key=lambda row: STATE * row[0] + row[1])
    table = pd.DataFrame.from_dict(rows, "index", columns=["weights", "activations"])
    state = STATE * table["weights"] / 2**30
    activations = table["activations"] / 2**30
    return pd.DataFrame(
        {
            "weights_m": table["weights"] / 1e6,
            "state_gib": state,
            "activations_gib": activations,
            "sum_gib": state + activations,
        }
    )


def _measure_pieces(config: Config) -> pd.DataFrame:
    """Measure what comes before a network's blocks, each block, and what comes after.

    Columns: weights, mlp_weights (those that tensor parallelism splits), saved (bytes of the
    activations of an image), mlp_saved (those of the MLP's hidden channels), gflop.
    """
    with torch.device("meta"):
        net = models.create(config.model, memory_prediction.CLASSES, config.image_px)
    table = pd.DataFrame(pipelines.piece_costs(net, config.image_px))
    table["mlp_weights"] = [0, *map(_split_weights, models.blocks(net)), 0]
    with memory_prediction.fake_step(config) as step:
        # A second image adds what is saved for each image, without bf16 copies of weights.
        one, two = (_saved_bytes(step, images) for images in (1, 2))
    for column, part in (("saved", "all"), ("mlp_saved", "hidden")):
        keys = [(number, part) for number in range(len(table))]
        table[column] = [two[key] - one[key] for key in keys]
    return table


def _split_weights(block: nn.Module) -> int:
    """Return the number of a block's weights that tensor parallelism splits."""
    if not hasattr(block, "mlp"):  # a block of convolutions
        return 0
    return models.parameter_count(block.mlp) - block.mlp.fc2.bias.numel()


def _saved_bytes(step: memory_prediction.FakeStep, images: int) -> Counter[tuple[int, str]]:
    """Return the bytes that a forward pass saves for backward, by piece: "all", and "hidden"."""
    storages: dict[torch.UntypedStorage, int] = {}  # with the piece that saves it first
    weights = {parameter.untyped_storage() for parameter in step.model.parameters()}
    hidden: set[torch.UntypedStorage] = set()
    blocks = models.blocks(step.model)
    current = 0

    def enter(number: int) -> None:
        nonlocal current
        current = number

    def save(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage()) not in weights:
            storages.setdefault(storage, current)
        return tensor

    for number, block in enumerate(blocks, 1):
        block.register_forward_pre_hook(lambda _, args, number=number: enter(number))
        if hasattr(block, "mlp"):
            for layer in (block.mlp.fc1, block.mlp.act):
                layer.register_forward_hook(lambda _, args, out: hidden.add(out.untyped_storage()))
    blocks[-1].register_forward_hook(lambda _, args, out: enter(len(blocks) + 1))
    with saved_tensors_hooks(save, lambda tensor: tensor):
        step.forward(slice(images))
    sizes: Counter[tuple[int, str]] = Counter()
    for storage, number in storages.items():
        sizes[number, "all"] += storage.nbytes()
        if storage in hidden:
            sizes[number, "hidden"] += storage.nbytes()
    return sizes
