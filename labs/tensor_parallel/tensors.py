"""Tensor parallelism: cuts of an MLP, messages, gradients, and PyTorch's DTensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import torch
from timm.layers import Mlp
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from course.analysis import on_ranks
from course.jobs import find_script
from course.lab import read_utf8
from course.runs import PROJECT
from course.training import models

RANKS = 2
FP32, HALF = 4, 2  # bytes
CNN, TRANSFORMER = "coatnet_pico_rw_224", "vit_tiny_patch16_224"
# The dimension in which a weight is cut; all others are complete on every rank.
CUT_DIMENSIONS = {"fc1.weight": 0, "fc1.bias": 0, "fc2.weight": 1}


def communication_volume(model: str, images: Sequence[int]) -> pd.DataFrame:
    """Compute the GB that a step reduces over the ranks, in bf16 autocast, by number of images.

    Columns: data_parallel, the gradients of all weights, fp32; tensor_parallel, for each MLP its
    result in forward, bf16, and its input's gradient in backward, fp32 (Shoeybi et al. 2019,
    Megatron-LM, arXiv:1909.08053, section 3).
    """
    net, mlps = _network_and_mlps(model)
    sizes: list[int] = []
    for mlp in mlps:
        mlp.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel()))
    with torch.no_grad():
        net.eval()(torch.empty(1, 3, 224, 224, device="meta"))
    weights = FP32 * models.parameter_count(net)
    rows = [(weights / 1e9, count * (HALF + FP32) * sum(sizes) / 1e9) for count in images]
    return pd.DataFrame(
        rows, columns=["data_parallel", "tensor_parallel"], index=pd.Index(images, name="images")
    )


def weight_share(model: str, ranks: int) -> float:
    """Compute the share of a network's weights that each rank keeps if its MLPs are cut."""
    net, mlps = _network_and_mlps(model)
    cut = sum(models.parameter_count(mlp) - mlp.fc2.bias.numel() for mlp in mlps)
    return 1 - cut * (1 - 1 / ranks) / models.parameter_count(net)


def _network_and_mlps(model: str) -> tuple[nn.Module, list[nn.Module]]:
    with torch.device("meta"):
        net = models.create(model, 1000, 224)
    return net, [block.mlp for block in models.blocks(net) if hasattr(block, "mlp")]


def compare_mlp_cuts() -> pd.DataFrame:
    """Cut x → gelu(x A) B over two ranks in four ways, as matrix products.

    Columns: messages and kib (of a rank, in forward), error (relative to the full result).
    """
    rows, *_ = on_ranks(_cut_mlp, RANKS)
    return pd.DataFrame.from_dict(rows, orient="index")


def _cut_mlp(rank: int, ranks: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    gelu = nn.functional.gelu
    x, a, b = torch.randn(8, 16), torch.randn(16, 64), torch.randn(64, 16)
    full = gelu(x @ a) @ b
    x_columns, a_columns, b_columns = (tensor.chunk(ranks, 1)[rank] for tensor in (x, a, b))
    a_rows, b_rows = (tensor.chunk(ranks, 0)[rank] for tensor in (a, b))
    sizes: list[int] = []

    def add(part: torch.Tensor) -> torch.Tensor:
        sizes.append(part.nbytes)
        distributed.all_reduce(part)
        return part

    def join(part: torch.Tensor) -> torch.Tensor:
        sizes.append(part.nbytes)
        return _gather(part, dim=1)

    cases: dict[str, Callable[[], torch.Tensor]] = {
        "columns, then rows": lambda: add(gelu(x @ a_columns) @ b_rows),
        "columns, then columns": lambda: join(join(gelu(x @ a_columns)) @ b_columns),
        "rows, then columns": lambda: join(gelu(add(x_columns @ a_rows)) @ b_columns),
        "rows, gelu of each part": lambda: join(add(gelu(x_columns @ a_rows)) @ b_columns),
    }
    rows = {}
    for name, case in cases.items():
        sizes.clear()
        error = relative_error(case(), full)
        rows[name] = {"messages": len(sizes), "kib": sum(sizes) / 1024, "error": error}
    return rows


def _gather(part: torch.Tensor, dim: int) -> torch.Tensor:
    """Return all ranks' parts, joined in this dimension."""
    parts = [torch.empty_like(part) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts, dim)


def relative_error(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    return float((tensor - expected).abs().max() / expected.abs().max())


def compare_with_full_mlp(script: str | Path) -> pd.DataFrame:
    """Compare the script's TensorParallelMlp on two ranks with the MLP that it was made from.

    A row for the result and for each gradient ("features" is the input's); a column for each
    network. Values: relative errors; NaN where shapes differ.

    Raises:
        RuntimeError: a rank failed; the message has its error.
    """
    columns, *_ = on_ranks(compare_on_rank, RANKS, str(find_script(script)))
    return pd.DataFrame(columns)


def compare_on_rank(rank: int, ranks: int, script: str) -> dict[str, dict[str, float]]:
    """Return the columns of `compare_with_full_mlp`, on each rank."""
    shared, mesh = load_script(script).TensorParallelMlp, init_device_mesh("cpu", (ranks,))
    columns: dict[str, dict[str, float]] = {}
    for title, model in (("CoAtNet, 1×1 convolutions", CNN), ("ViT, Linear", TRANSFORMER)):
        mlp, features = _mlp_and_features(model)
        full = _result_and_gradients(mlp, features)
        parts = _result_and_gradients(shared(mlp, mesh), features)
        columns[title] = {}
        for name, expected in full.items():
            part = parts.get(name)
            if name in CUT_DIMENSIONS and part is not None and part.shape != expected.shape:
                part = _gather(part, CUT_DIMENSIONS[name])
            same_shape = part is not None and part.shape == expected.shape
            columns[title][name] = relative_error(part, expected) if same_shape else float("nan")
    return columns


def load_script(script: str) -> ModuleType:
    """Load a training script as a module, without running its main function."""
    module = ModuleType("script")
    sys.modules[module.__name__] = module
    exec(compile(read_utf8(Path(script)), script, "exec"), module.__dict__)
    return module


def _mlp_and_features(model: str) -> tuple[nn.Module, torch.Tensor]:
    """Return the MLP of a network's last block, and an input for it."""
    torch.manual_seed(0)
    mlp = models.blocks(models.create(model, 10, 64))[-1].mlp
    channels = mlp.fc1.weight.shape[1]
    shape = (channels, 2, 2) if mlp.fc1.weight.ndim == 4 else (5, channels)
    return mlp, torch.randn(2, *shape)


def _result_and_gradients(mlp: nn.Module, features: torch.Tensor) -> dict[str, torch.Tensor]:
    features = features.clone().requires_grad_()
    result = mlp(features)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (result * weight).sum().backward()
    gradients = {name: weight.grad.clone() for name, weight in mlp.named_parameters()}
    mlp.zero_grad()
    return {"result": result.detach(), "features": features.grad, **gradients}


class Block(nn.Module):
    """A transformer's block without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(32), Mlp(32, 128)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.mlp(self.norm(features))


def train_without_sum() -> pd.DataFrame:
    """Train a small network; return the loss of each step.

    Columns: full (one process), shared (the solution's TensorParallelMlp on two ranks),
    without_sum (the same without the all-reduce in backward).
    """
    columns, *_ = on_ranks(_train_three, RANKS)
    return pd.DataFrame(columns).rename_axis("step")


def _train_three(rank: int, ranks: int) -> dict[str, list[float]]:
    script = load_script(str(PROJECT / "solutions" / "train_parallel.py"))
    mesh = init_device_mesh("cpu", (ranks,))
    losses = {"full": _train(lambda mlp: mlp)}
    losses["shared"] = _train(lambda mlp: script.TensorParallelMlp(mlp, mesh))
    script.Entry.backward = staticmethod(lambda ctx, gradient: (gradient, None))
    losses["without_sum"] = _train(lambda mlp: script.TensorParallelMlp(mlp, mesh))
    return losses


def _train(share: Callable[[nn.Module], nn.Module]) -> list[float]:
    """Return the loss of each step, of a network whose MLPs are shared by this function."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(4)]
    network = nn.Sequential(nn.Linear(32, 32), *blocks, nn.Linear(32, 8))
    for block in blocks:
        block.mlp = share(block.mlp)
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(64) % 8
    images = torch.randn(8, 32, generator=generator)[labels]
    images += torch.randn(64, 32, generator=generator)
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=1e-3), []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def try_parallelize_module() -> pd.DataFrame:
    """Try PyTorch's tensor parallelism on the MLPs of ViT (Linear) and CoAtNet (Conv2d).

    Columns: message (PyTorch's error, or ""), error (of the result, relative), all_reduces (in
    forward).
    """
    rows, *_ = on_ranks(_parallelize, RANKS)
    return pd.DataFrame.from_dict(rows, orient="index")


def _parallelize(rank: int, ranks: int) -> dict[str, dict[str, Any]]:
    from torch.distributed.tensor import parallel
    from torch.distributed.tensor.debug import CommDebugMode

    mesh, rows = init_device_mesh("cpu", (ranks,)), {}
    for title, model in (("Linear", TRANSFORMER), ("Conv2d", CNN)):
        mlp, features = _mlp_and_features(model)
        plan = {"fc1": parallel.ColwiseParallel(), "fc2": parallel.RowwiseParallel()}
        try:
            sharded = parallel.parallelize_module(deepcopy(mlp), mesh, plan)
        except NotImplementedError as error:
            rows[title] = {"message": f"{type(error).__name__}: {error}"}
            continue
        with (mode := CommDebugMode()):
            error = relative_error(sharded(features), mlp(features))
        counts = mode.get_comm_counts().items()
        sums = sum(count for name, count in counts if "all_reduce" in str(name))
        rows[title] = {"message": "", "error": error, "all_reduces": sums}
    return rows
