"""The cost of an image or volume in each network: operations bytes and memory, without a GPU."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd
import torch

from course.training import models
from electives.networks.bench import Setting, Workload
from electives.networks.catalogue import NETWORKS
from trainspeed.costs import count_operators, total
from trainspeed.fake_gpu import fake_tensors
from trainspeed.memory import saved_tensors, update_once


def network_costs() -> pd.DataFrame:
    """Return each network's cost per image in training, at the published batch.

    Columns: gflop, megabytes_half (of operators that are not fused, in 16 bits).
    """
    costs = pd.DataFrame({name: _cost(name) for name in NETWORKS}).T
    return costs.rename_axis("network").rename(columns={"megabytes": "megabytes_half"})


def _cost(network: str) -> pd.Series:
    with fake_tensors():
        workload = Workload(Setting(network, "bf16"), torch.device("cpu"))
        # Without a first update, the optimizer's state would be created in the counted step.
        update_once(workload.optimizer)
        cost = total(count_operators(workload.step)).per(workload.setting.batch)
    return pd.Series({"gflop": cost.flop / 1e9, "megabytes": cost.bytes / 1e6})


@lru_cache
def saved_gb(network: str, precision: str) -> dict[str, float]:
    """Return a lower bound of the memory of training, in GB: what is kept, without workspace.

    Keys: weights (weights, gradients and momentum in fp32), image (of one image's activations).
    """
    batch = 2
    with fake_tensors():
        half = "bf16" if precision in ("fp16", "bf16") else "fp32"
        workload = Workload(Setting(network, half, batch=batch), torch.device("cpu"))
        weights = models.parameter_count(workload.network)
        saved = saved_tensors(workload.step, [])
        sizes = [t.untyped_storage().nbytes() for t in saved if t.shape[:1] == (batch,)]
    return {"weights": 3 * 4 * weights / 1e9, "image": sum(sizes) / batch / 1e9}
