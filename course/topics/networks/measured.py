"""The benchmark's whole table on a GPU, as one command measures it; and read anywhere."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import torch

from course.runs import once
from course.topics.networks.bench import Setting, bench
from course.topics.networks.published import GPUS, PRECISIONS, ratios, speeds

COMMAND = (
    "python -m benchmarks.networks: 5 steps of warm-up, then 8 to 60 timed ones, as many as fit "
    "into 0.6 s (0.3 s in inference); cuDNN chooses its kernels by trying; of training one further "
    "step traced; from files 30 steps of warm-up and 60 timed ones, means of 10"
)
BATCHES = (("resnet50", 64), ("ssd300", 32), ("unet3d", 2))
LARGE = ("resnet50", 256)
PUBLISHED = (("fp32", "contiguous"), ("tf32", "contiguous"), ("fp16", "contiguous"))
BEST = {"precision": "fp16", "layout": "channels_last"}
FEW = (PUBLISHED[0], PUBLISHED[2], ("fp16", "channels_last"))  # of inference
# The settings of inference, each a step from the one before.
ONE_BY_ONE = (*((*each, False) for each in FEW), (*BEST.values(), True))
BF16 = (("bf16", "channels_last"), ("bf16", "contiguous"))
BRIEF = {"warmup": 5, "iterations": 60}
SECONDS = {"train": 0.6, "infer": 0.3}
WORKERS = 10  # of 16 cores: training, and the thread that pins, have some to themselves
FROM_FILES = {
    "data": "photographs",
    "workers": WORKERS,
    "traced": False,
    # Longer than what workers have loaded ahead, two batches each, by the time the first is asked.
    "warmup": 3 * WORKERS,
    "iterations": 6 * WORKERS,
    **BEST,
}
# What a row takes at most, as far as is known: to try kernels for each layer, and to compile.
TRIES_S, COMPILES_S, ELSE_S = 25.0, {"train": 60.0, "infer": 30.0}, 4.0
# Of each GPU, and in the layout in which eager steps are faster.
TOGETHER = (
    ("resnet50", 64, "channels_last"),
    ("ssd300", 32, "channels_last"),
    ("unet3d", 2, "contiguous"),
    ("resnet50", 256, "channels_last"),
    ("ssd300", 128, "channels_last"),
)
AT_WORK = ", at work"  # after a GPU's name: if it never waited for the host
STEPS_TOGETHER = {"warmup": 10, "iterations": 30, "precision": "fp16"}


def plan() -> Iterator[Setting]:
    """What one GPU measures, the most important first: time may not suffice for the last.

    Rows that need the kernels of an earlier one follow it, in one process: cuDNN knows them then.
    """
    for precision, layout in (*PUBLISHED, tuple(BEST.values())):
        yield from _of_networks("train", precision=precision, layout=layout)
    for precision, layout in FEW:
        yield from _of_networks("infer", precision=precision, layout=layout)
    for name, batch in BATCHES[1:]:
        yield Setting(name, batch=batch, **FROM_FILES)
    yield _brief(*LARGE, "train", **BEST)
    for mode in ("train", "infer"):
        yield from _of_networks(mode, compile=True, **BEST)
    for precision, layout in PUBLISHED[1::-1]:
        yield _brief(*LARGE, "train", precision=precision, layout=layout)
    for precision, layout in BF16:
        yield from _of_networks("train", precision=precision, layout=layout)
    yield _brief(*LARGE, "train", compile=True, **BEST)


def expected_s(setting: Setting) -> float:
    """What a row of the plan takes at most."""
    if setting.compile:
        return COMPILES_S[setting.mode]
    tried = setting.mode == "infer" or setting.data != "synthetic"
    return ELSE_S + TRIES_S * (setting.tries and not tried)


def _of_networks(mode: str, **own: Any) -> Iterator[Setting]:
    for name, batch in BATCHES:
        yield _brief(name, batch, mode, **own)


def _brief(name: str, batch: int, mode: str, **own: Any) -> Setting:
    traced, seconds = mode == "train", SECONDS[mode]
    return Setting(name, mode=mode, batch=batch, seconds=seconds, traced=traced, **BRIEF, **own)


def measure_all(
    keep: Callable[[dict[str, Any]], None],
    limit_s: float,
    settings: list[Setting] | None = None,
    device: str = "",
) -> dict[str, Any]:
    """Measure the plan: {"command", "rows", "errors", "left_out"}, kept after each row.

    A setting that fails is noted with its error, and the next one follows. One that may not end
    within `limit_s` (`expected_s`) is left out; a shorter one may follow.
    """
    begin = time.perf_counter()
    _start_compilers()
    found: dict[str, Any] = {"command": COMMAND, "rows": [], "errors": [], "left_out": []}
    for setting in settings or plan():
        if time.perf_counter() - begin + expected_s(setting) > limit_s:
            found["left_out"].append(asdict(setting))
            continue
        row = attempted(setting, device)
        found["errors" if "error" in row else "rows"].append(row)
        keep(found)
        passed = time.perf_counter() - begin
        print(f"{passed:5.0f} s  {told(row)}", flush=True)
    keep(found)
    return found


def _start_compilers() -> None:
    """The compiler's processes import PyTorch while the first rows, which wait for the GPU alone,
    are measured."""
    if torch.cuda.is_available():
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def attempted(setting: Setting, device: str = "") -> dict[str, Any]:
    """The row of a setting, or the setting with its "error"; nothing of it stays on the GPU.

    On several GPUs it has processes of its own: where one fails the others would wait for it, so
    they are ended, and the next row begins anew.
    """
    try:
        row = bench(setting, device=device)
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
    what += f" on {row['gpus']} GPUs" * (row["gpus"] > 1)
    what += " compiled" * row["compile"] + f" {row['data']}" * (row["data"] != "synthetic")
    if "error" in row:
        return f"{what}: {row['error']}"
    share = row.get("tensor_core_share")
    cores = f", {share:.0%} on Tensor Cores" if share is not None else ""
    took = ", ".join(f"{name} {each:.1f} s" for name, each in row["took_s"].items())
    speed = f"{row['images_per_s']:.1f} images/s of {row['timed']} steps"
    return f"{what}: {speed}{cores} ({took})"


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a setting.

    Columns: those of `bench.Setting`; images_per_s and step_s with quartiles; timed; peak_gib; of
    one traced step of training busy_s (seconds for which the GPU has work), gpu_s,
    tensor_core_share, kinds (shares by what operators do) and kernels (the longest); machine. And
    what follows from them (NaN: not traced): busy, busy_s as a share of step_s; at_work_per_s,
    images a second if the GPU never waited for the host; against_fp32 and work_against_fp32, both
    speeds by those in fp32, of the same network, mode and batch.

    Compare settings by the latter where busy is low: how long a host takes hangs on what else its
    processor does.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = _with_busy(once.table(machine, "networks"))
    of = ["network", "mode", "batch"]
    plain = (table["precision"] == "fp32") & (table["layout"] == "contiguous")
    plain &= ~table["compile"] & (table["data"] == "synthetic")
    base = table[plain].set_index(of)[["images_per_s", "at_work_per_s"]]
    base = table[of].join(base, on=of)
    return table.assign(
        against_fp32=table["images_per_s"] / base["images_per_s"],
        work_against_fp32=table["at_work_per_s"] / base["at_work_per_s"],
    )


def _with_busy(table: pd.DataFrame) -> pd.DataFrame:
    """A traced step has the profiler's calls between its kernels, so its own length tells little:
    seconds of work are from there, and the step's from the timed ones."""
    busy_s = table.get("busy_s", np.nan)
    busy = (busy_s / table["step_s"]).clip(upper=1.0)
    return table.assign(busy=busy, at_work_per_s=table["images_per_s"] / busy)


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


def beside(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Every published row, and the same settings as recorded: images a second in training.

    Index network and gpu: the published ones, then `name` twice, as reached and, with AT_WORK, if
    the GPU never waited for the host. Columns: fp32, tf32, fp16; NaN: failed, or without units.

    Args:
        table: of `recorded`.
    """
    ours = {
        f"{name}{words}": _of_mode(table, "train", speed).xs(
            ("contiguous", False), axis=1, level=("layout", "compile")
        )
        for words, speed in (("", "images_per_s"), (AT_WORK, "at_work_per_s"))
    }
    ours = pd.concat(ours, names=["gpu", "network"]).swaplevel()
    ours = ours.reindex(columns=[*PRECISIONS]).rename_axis(columns=None)
    found = pd.concat([speeds(), ours])
    order = [*GPUS, *ours.index.unique("gpu")]
    return found.reindex([(each, gpu) for each in found.index.unique("network") for gpu in order])


def layouts(table: pd.DataFrame) -> pd.DataFrame:
    """fp16 in training, by network, at the published batch, images/s of the GPU's work alone
    (at_work_per_s): contiguous, channels_last, compiled (in channels_last); and what the layout
    and the compiler bring, × the one before.

    Args:
        table: of `recorded`. NaN: it has no such row, or none that was traced.
    """
    of = _of_mode(table, "train", "at_work_per_s")
    found = pd.DataFrame(
        {
            "contiguous": of.get(("fp16", "contiguous", False)),
            "channels_last": of.get(("fp16", "channels_last", False)),
            "compiled": of.get(("fp16", "channels_last", True)),
        },
        index=of.index,
        dtype=float,
    )
    found["layout_brings"] = found["channels_last"] / found["contiguous"]
    found["compiler_brings"] = found["compiled"] / found["channels_last"]
    return found


def inference(table: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast inference is as the GPU's work of training (at_work_per_s): a row a
    network, a column a setting.

    Args:
        table: of `recorded`.
    """
    found = _of_mode(table, "infer") / _of_mode(table, "train", "at_work_per_s")
    found = found[[each for each in ONE_BY_ONE if each in found]].dropna(axis=1, how="all")
    names = [f"{p} {layout}" + " compiled" * compiled for p, layout, compiled in found.columns]
    return found.set_axis(names, axis=1)


def _of_mode(table: pd.DataFrame, mode: str, speed: str = "images_per_s") -> pd.DataFrame:
    """Images/s at the published batch of random images: a row a network, a column a setting."""
    published = table["batch"] == table["network"].map(dict(BATCHES))
    rows = table[published & (table["mode"] == mode) & (table["data"] == "synthetic")]
    wide = rows.pivot(index="network", columns=["precision", "layout", "compile"], values=speed)
    return wide.reindex([name for name, _ in BATCHES])


def from_files(table: pd.DataFrame) -> pd.DataFrame:
    """A row a network that was fed from files: images/s of random images that lie on the GPU
    (synthetic), from files (photographs), kept (their ratio), and workers.

    Args:
        table: of `recorded`.
    """
    files = table[table["data"] == "photographs"].set_index("network")
    synthetic = _of_mode(table, "train").get((*BEST.values(), False))
    found = pd.DataFrame({"synthetic": synthetic, "photographs": files["images_per_s"]})
    found["kept"] = found["photographs"] / found["synthetic"]
    return found.join(files["workers"]).dropna()


def recorded_together(machine: str) -> pd.DataFrame:
    """What was measured on one and on several GPUs of a machine: columns as `recorded`, gpus.

    Raises:
        ValueError: nothing was recorded there.
    """
    return once.table(machine, "networks_together")


def scaling(machine: str) -> pd.DataFrame:
    """How training scales by data parallelism: a row a network, batch of each GPU, and gpus.

    Columns: images_per_s, of all GPUs together; efficiency, its share of gpus times one GPU's;
    step_s; computing_s, in which a GPU does more than to communicate, and computing, its share of
    step_s (NaN: not traced); nccl_s, the traced step's kernels that send, or wait for another GPU
    to begin; megabytes, of the gradients that are sent in a step, in fp32.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_together(machine)
    one = table[table["gpus"] == 1].set_index(["network", "batch"])["images_per_s"]
    base = table[["network", "batch"]].join(one.rename("one"), on=["network", "batch"])["one"]
    computing_s = table.get("busy_s", np.nan) - table.get("exposed_s", np.nan)
    found = pd.DataFrame(
        {
            "images_per_s": table["images_per_s"],
            "efficiency": table["images_per_s"] / base / table["gpus"],
            "step_s": table["step_s"],
            "computing_s": computing_s,
            "computing": (computing_s / table["step_s"]).clip(upper=1.0),
            "nccl_s": table.get("communication_s", np.nan),
            "megabytes": 4 * table["parameters"] / 1e6 * (table["gpus"] > 1),
        }
    )
    found.index = pd.MultiIndex.from_frame(table[["network", "batch", "gpus"]])
    order = [(*each, gpus) for each in one.index for gpus in sorted(set(table["gpus"]))]
    return found.loc[[each for each in order if each in found.index]]  # a row may have failed
