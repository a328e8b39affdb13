"""Tensor parallelism: an MLP on several ranks, its messages and gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

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
    with torch.device("meta"):
        net = models.create(model, 1000, 224)
    sizes: list[int] = []
    for block in models.blocks(net):
        if hasattr(block, "mlp"):
            block.mlp.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel()))
    with torch.no_grad():
        net.eval()(torch.empty(1, 3, 224, 224, device="meta"))
    weights = FP32 * models.parameter_count(net)
    rows = [(weights / 1e9, count * (HALF + FP32) * sum(sizes) / 1e9) for count in images]
    return pd.DataFrame(
        rows, columns=["data_parallel", "tensor_parallel"], index=pd.Index(images, name="images")
    )


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
