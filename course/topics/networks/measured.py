"""The benchmark's whole table on a GPU, as one command measures it; and read anywhere."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from torch import distributed

from course.runs import once
from course.topics.networks.bench import Setting, measure
from course.topics.networks.published import ratios

COMMAND = (
    "python -m benchmarks.networks: 5 steps of warm-up, then 8 to 60 timed ones, as many as fit "
    "into 0.6 s (0.3 s in inference); cuDNN chooses its kernels by rule; of training one further "
    "step traced"
)
BATCHES = (("resnet50", 64), ("ssd300", 32), ("unet3d", 2))
LARGE = ("resnet50", 256)
EAGER = (
    ("fp32", "contiguous"),
    ("tf32", "contiguous"),
    ("fp16", "contiguous"),
    ("bf16", "contiguous"),
    ("fp16", "channels_last"),
    ("bf16", "channels_last"),
)
FEW = (EAGER[0], EAGER[2], EAGER[4])  # of inference, and of the large batch
BEST = {"precision": "fp16", "layout": "channels_last"}
BRIEF = {"warmup": 5, "iterations": 60, "tries": False}
SECONDS = {"train": 0.6, "infer": 0.3}
WORKERS = 14
TOGETHER = {"warmup": 10, "iterations": 30, "tries": False, "traced": False, **BEST}


def plan() -> Iterator[Setting]:
    """What one GPU measures, the most important first: time may not suffice for the last."""
    for precision, layout in EAGER:
        yield from _of_networks("train", precision=precision, layout=layout)
    yield from _of_networks("train", compile=True, **BEST)
    for precision, layout in FEW:
        yield from _of_networks("infer", precision=precision, layout=layout)
    for name in ("ssd300", "unet3d"):
        own = {"data": "photographs", "workers": WORKERS, "traced": False, **BEST, **BRIEF}
        yield Setting(name, seconds=2.0, **own)
    for precision, layout in FEW:
        yield _brief(*LARGE, "train", precision=precision, layout=layout, traced=False)
    yield from _of_networks("infer", compile=True, **BEST)
    yield _brief(*LARGE, "train", compile=True, traced=False, **BEST)


def _of_networks(mode: str, **own: Any) -> Iterator[Setting]:
    for name, batch in BATCHES:
        yield _brief(name, batch, mode, traced=mode == "train", **own)


def _brief(name: str, batch: int, mode: str, **own: Any) -> Setting:
    return Setting(name, mode=mode, batch=batch, seconds=SECONDS[mode], **BRIEF, **own)


def measure_all(
    keep: Callable[[dict[str, Any]], None],
    limit_s: float,
    settings: list[Setting] | None = None,
    device: str = "",
) -> dict[str, Any]:
    """Measure the plan: {"command", "rows", "errors", "left_out"}, kept after each row.

    A setting that fails is noted with its error, and the next one follows. After `limit_s` none is
    begun.
    """
    begin = time.perf_counter()
    found: dict[str, Any] = {"command": COMMAND, "rows": [], "errors": [], "left_out": []}
    for setting in settings or plan():
        if time.perf_counter() - begin > limit_s:
            found["left_out"].append(asdict(setting))
            continue
        row = attempted(setting, device)
        found["errors" if "error" in row else "rows"].append(row)
        keep(found)
        passed = time.perf_counter() - begin
        print(f"{passed:5.0f} s  {told(row)}", flush=True)
    keep(found)
    return found


def attempted(setting: Setting, device: str = "") -> dict[str, Any]:
    """The row of a setting, or the setting with its "error"; nothing of it stays on the GPU."""
    try:
        row = measure(setting, device=device)
    except Exception as error:  # one that fails must not take the others with it
        row = asdict(setting) | {"error": f"{type(error).__name__}: {error}"[:500]}
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return row


def told(row: dict[str, Any]) -> str:
    """A row in words, for whoever waits."""
    what = f"{row['network']} {row['mode']} {row['batch']} {row['precision']} {row['layout']}"
    what += " compiled" * row["compile"] + f" {row['data']}" * (row["data"] != "synthetic")
    if "error" in row:
        return f"{what}: {row['error']}"
    share = row.get("tensor_core_share")
    cores = f", {share:.0%} on Tensor Cores" if share is not None else ""
    return f"{what}: {row['images_per_s']:.1f} images/s of {row['timed']} steps{cores}"


def several(rank: int, ranks: int, batches: list, own: dict[str, Any], device: str) -> list:
    """On each of several GPUs: the rows of all networks, trained together."""
    rows = []
    for name, batch in batches:
        row = attempted(Setting(name, batch=batch, gpus=ranks, **own), device)
        if rank == 0:
            print(told(row), flush=True)
        rows.append(row)
        distributed.barrier()
    return rows


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a setting.

    Columns: those of `bench.Setting`; images_per_s and step_s with quartiles; timed; peak_gib; of
    one traced step of training gpu_s, tensor_core_share, kinds (shares by what operators do) and
    kernels (the longest); against_fp32, images_per_s by those in fp32, of the same network, mode
    and batch; machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = once.table(machine, "networks")
    of = ["network", "mode", "batch"]
    plain = (table["precision"] == "fp32") & (table["layout"] == "contiguous")
    plain &= ~table["compile"] & (table["data"] == "synthetic")
    base = table[plain].set_index(of)["images_per_s"].rename("base")
    table = table.join(base, on=of)
    table["against_fp32"] = table["images_per_s"] / table["base"]
    return table.drop(columns="base")


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """What Tensor Cores can bring each network, from the traced step of fp32; a row a batch.

    Columns: products (their share of the time), at_most (times as fast, if products took no time
    and all else stayed), tf32 (times as fast as fp32, as recorded; NaN: it was not),
    tf32_a100 and fp16_a100, as published for the batch of the published benchmark.

    Args:
        table: of `recorded`.
    """
    rows = table[(table["mode"] == "train") & (table["data"] == "synthetic")]
    fp32 = rows[(rows["precision"] == "fp32") & rows["kinds"].map(lambda k: isinstance(k, dict))]
    found = fp32.set_index(["network", "batch"])[["kinds"]].sort_index(ascending=[False, True])
    tf32 = rows[rows["precision"] == "tf32"].set_index(["network", "batch"])["against_fp32"]
    found["products"] = [kinds["products"] for kinds in found["kinds"]]
    found["at_most"] = 1 / (1 - found["products"])
    found["tf32"] = tf32.reindex(found.index)
    theirs = ratios().xs("A100", level="gpu")
    for name in ("tf32", "fp16"):
        found[f"{name}_a100"] = [theirs.loc[network, name] for network, _ in found.index]
    return found.drop(columns="kinds")


def recorded_together(machine: str) -> pd.DataFrame:
    """What was measured on one and on several GPUs of a machine: columns as `recorded`, gpus.

    Raises:
        ValueError: nothing was recorded there.
    """
    return once.table(machine, "networks_together")


def scaling(machine: str) -> pd.DataFrame:
    """By network and batch of each GPU: images a second on one GPU and on all, speedup, efficiency.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_together(machine)
    wide = table.pivot(index=["network", "batch"], columns="gpus", values="images_per_s")
    most = wide.columns.max()
    found = wide.assign(speedup=wide[most] / wide[1])
    found["efficiency"] = found["speedup"] / most
    return found.rename(columns={1: "one GPU", most: f"{most} GPUs"})
