"""The cost of an image or volume in each network: operations and bytes, counted without a GPU."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course.analysis.roofline import Ceilings, count_operators
from course.training.models import parameter_count
from labs.lab_networks import catalogue
from labs.lab_networks.bench import Setting, Workload

# The parameters of the published benchmark's networks, in millions.
PUBLISHED_MILLIONS = {"ssd300": 22.0, "unet3d": 31.2, "resnet50": 23.0}


@lru_cache
def operator_costs(network: str, precision: str) -> pd.DataFrame:
    """Count what each kind of operator costs per image, with `roofline.operators`' columns."""
    with torch.random.fork_rng(devices=[]), FakeTensorMode():
        workload = Workload(Setting(network, precision), torch.device("cpu"))
        # Without a first update, the optimizer's state would be created in the counted step.
        for weight in workload.network.parameters():
            weight.grad = torch.zeros_like(weight)
        workload.optimizer.step()
        workload.optimizer.zero_grad(set_to_none=True)
        return count_operators(workload.step, workload.setting.batch)


def network_costs() -> pd.DataFrame:
    """Return each network's size and its cost per image in training, at the published batch.

    Columns: words, batch, million_parameters, published_millions, differs (in percent), gflop,
    megabytes_half (of operators that are not fused, in 16 bits).
    """
    rows = {}
    for name, network in catalogue.NETWORKS.items():
        with torch.device("meta"):
            millions = parameter_count(network.build()) / 1e6
        costs = operator_costs(name, "bf16")
        rows[name] = {
            "words": network.words,
            "batch": network.batch_size,
            "million_parameters": millions,
            "published_millions": PUBLISHED_MILLIONS[name],
            "differs": round(100 * (millions / PUBLISHED_MILLIONS[name] - 1), 1) + 0.0,  # no "-0"
            "gflop": costs["gflop"].sum(),
            "megabytes_half": costs["megabytes"].sum(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def performance_limits(ceilings: Ceilings) -> pd.DataFrame:
    """Return the highest images/s that a machine allows in training, by network and precision.

    Columns: network, precision, compute and memory (images/s), nearer (the lower one's name).
    """
    rows = []
    for name in catalogue.NETWORKS:
        for precision, flop_per_s in ceilings.flop_per_s.items():
            half = precision in ("fp16", "bf16")
            costs = operator_costs(name, "bf16" if half else "fp32")
            limits = {
                "compute": flop_per_s / costs["gflop"].sum() / 1e9,
                "memory": ceilings.bytes_per_s / costs["megabytes"].sum() / 1e6,
            }
            nearer = min(limits, key=limits.get)
            rows.append({"network": name, "precision": precision, **limits, "nearer": nearer})
    return pd.DataFrame(rows)
