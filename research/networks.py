"""The table of lab_networks: SSD300, 3D U-Net and ResNet-50 on one GPU, or on one and on all.

    python -m research.networks OUT.jsonl [--limit 550]

On a machine with one GPU: 5 steps of warm-up, then 20 timed ones (the recorded rows have 8 to 60,
in the column `timed`), and one traced step of training. With several GPUs: 10 steps of warm-up, 30
timed ones and a traced one, on one GPU and on all. cuDNN chooses its kernels by trying. Nothing
else may run on that machine: eager steps of small batches wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from labs.lab_networks.bench import Setting, bench
from labs.lab_networks.catalogue import NETWORKS
from labs.lab_networks.measurements import INFERENCE, ORDER
from research.sweep import command

BATCHES = [(name, NETWORKS[name].batch_size) for name in ORDER]
LARGE = ("resnet50", 256)
BEST = {"precision": "fp16", "layout": "channels_last"}
PUBLISHED = (("fp32", "contiguous"), ("tf32", "contiguous"), ("fp16", "contiguous"))
BF16 = (("bf16", "channels_last"), ("bf16", "contiguous"))
# A row's maximum time: trying kernels for each layer, compiling, and the rest.
TRIES_S, COMPILES_S, REST_S = 25.0, {"train": 60.0, "infer": 30.0}, 4.0
# Network, batch of each GPU, and the layout in which eager steps are faster.
SEVERAL = (
    ("resnet50", 64, "channels_last"),
    ("ssd300", 32, "channels_last"),
    ("unet3d", 2, "contiguous"),
    ("resnet50", 256, "channels_last"),
    ("ssd300", 128, "channels_last"),
)


def plan(gpus: int) -> Iterator[Setting]:
    """Yield the settings, the most important first.

    Rows that need the kernels of an earlier one follow it, in one process: cuDNN knows them then.
    """
    if gpus > 1:
        for count in (1, gpus):
            for name, batch, layout in SEVERAL:
                fields = {"warmup": 10, "iterations": 30, "precision": "fp16"}
                yield Setting(name, batch=batch, layout=layout, gpus=count, **fields)
        return
    for precision, layout in (*PUBLISHED, tuple(BEST.values())):
        yield from _all_networks("train", precision=precision, layout=layout)
    for precision, layout, compiled in INFERENCE:
        if not compiled:
            yield from _all_networks("infer", precision=precision, layout=layout)
    yield _brief(*LARGE, "train", **BEST)
    for mode in ("train", "infer"):
        yield from _all_networks(mode, compile=True, **BEST)
    for precision, layout in PUBLISHED[1::-1]:
        yield _brief(*LARGE, "train", precision=precision, layout=layout)
    for precision, layout in BF16:
        yield from _all_networks("train", precision=precision, layout=layout)
    yield _brief(*LARGE, "train", compile=True, **BEST)


def _all_networks(mode: str, **fields: Any) -> Iterator[Setting]:
    for name, batch in BATCHES:
        yield _brief(name, batch, mode, **fields)


def _brief(name: str, batch: int, mode: str, **fields: Any) -> Setting:
    steps = {"warmup": 5, "iterations": 20, "traced": mode == "train"}
    return Setting(name, mode=mode, batch=batch, **steps, **fields)


def measure(**setting: Any) -> dict[str, Any]:
    """Measure a setting."""
    return bench(Setting(**setting))


def longest_s(**setting: Any) -> float:
    """Return the longest time of a row. cuDNN tries kernels only in training."""
    if setting["compile"]:
        return COMPILES_S[setting["mode"]]
    return REST_S + TRIES_S * (setting["mode"] == "train")


if __name__ == "__main__":
    if torch.cuda.is_available():
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()  # the compiler's processes import PyTorch during the first rows
    rows = map(asdict, plan(torch.cuda.device_count()))
    command(__doc__, rows, measure, longest_s=longest_s)
