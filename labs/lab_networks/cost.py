"""What an image or a volume costs each network: operations and bytes, counted without a GPU."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course.analysis.roofline.bounds import Ceilings
from course.analysis.roofline.cost import count_operators
from course.training.models import parameter_count
from labs.lab_networks import catalogue
from labs.lab_networks.bench import Setting, Work

# What the published benchmark says of its networks, in millions of parameters.
PUBLISHED_MILLIONS = {"ssd300": 22.0, "unet3d": 31.2, "resnet50": 23.0}


@lru_cache
def operators(
    network: str, precision: str = "fp32", mode: str = "train", layout: str = "contiguous"
) -> pd.DataFrame:
    """What each kind of operator costs for one image: columns as `roofline.cost.operators`.

    Both halves move the same bytes: take "bf16".
    """
    with torch.random.fork_rng(devices=[]), FakeTensorMode():
        work = Work(Setting(network, precision, mode, layout), torch.device("cpu"))
        next(work.batches)  # it is made once
        _update_once(work)
        return count_operators(work.step, work.setting.batch)


def _update_once(work: Work) -> None:
    """An update by gradients that nobody computed: from here on the optimizer has its state."""
    for weight in work.plain.parameters():
        weight.grad = torch.zeros_like(weight)
    work.optimizer.step()
    work.optimizer.zero_grad(set_to_none=True)


def networks() -> pd.DataFrame:
    """A row a network, at the published batch: what it is, and what one image costs in training.

    Columns: words, batch, million_parameters, published_millions, differs (in percent), gflop (of
    a training step, an image), megabytes_fp32 and megabytes_half (moved by operators that are not
    fused), flop_per_byte_half.
    """
    rows = {}
    for name, network in catalogue.NETWORKS.items():
        with torch.device("meta"):
            millions = parameter_count(network.build()) / 1e6
        whole, half = (operators(name, each) for each in ("fp32", "bf16"))
        rows[name] = {
            "words": network.words,
            "batch": network.batch_size,
            "million_parameters": millions,
            "published_millions": PUBLISHED_MILLIONS[name],
            "differs": round(100 * (millions / PUBLISHED_MILLIONS[name] - 1), 1) + 0.0,  # no "-0"
            "gflop": whole["gflop"].sum(),
            "megabytes_fp32": whole["megabytes"].sum(),
            "megabytes_half": half["megabytes"].sum(),
            "flop_per_byte_half": 1e3 * half["gflop"].sum() / half["megabytes"].sum(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def bounds(ceilings: Ceilings) -> pd.DataFrame:
    """The most images a second that a machine allows in training, by network and precision.

    Columns: network, precision, arithmetic and memory (images/s), nearer, the lower one's name.
    """
    rows = []
    for name in catalogue.NETWORKS:
        for precision, flop_per_s in ceilings.flop_per_s.items():
            half = precision in ("fp16", "bf16")
            table = operators(name, "bf16" if half else "fp32")
            found = {
                "arithmetic": flop_per_s / table["gflop"].sum() / 1e9,
                "memory": ceilings.bytes_per_s / table["megabytes"].sum() / 1e6,
            }
            nearer = min(found, key=found.__getitem__)
            rows.append({"network": name, "precision": precision, **found, "nearer": nearer})
    return pd.DataFrame(rows)
