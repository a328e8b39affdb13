"""Figures of the benchmark: what networks cost, how fast they are, and where their time goes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    bars,
    heading,
    label,
    legend,
    plot_bar_panels,
    stack,
)
from course.lab import digits
from electives.networks.catalogue import NETWORKS
from electives.networks.measurements import speeds_by_setting

TITLES = {"ssd300": "SSD300", "unet3d": "3D U-Net", "resnet50": "ResNet-50"}
BUSY = 0.95  # share of a step from which a GPU counts as busy all the time
GPU_COLOURS = {"P100": GREY, "V100": SKY, "A100": BLUE}  # others: ACCENT
# Rows of a ladder: words, and the setting (precision, layout, compiled).
RUNGS = {
    "fp32": ("fp32", "contiguous", False),
    "TF32": ("tf32", "contiguous", False),
    "bf16": ("bf16", "contiguous", False),
    "fp16": ("fp16", "contiguous", False),
    "bf16, channels last": ("bf16", "channels_last", False),
    "fp16, channels last": ("fp16", "channels_last", False),
    "… compiled": ("fp16", "channels_last", True),
}
PARTS = {
    "products on Tensor Cores": GREEN,
    "products elsewhere": ORANGE,
    "normalisation": BLUE,
    "copies": ACCENT,
    "all else": GREY,
}


def plot_costs(table: pd.DataFrame) -> Picture:
    """Draw operations and bytes per image in training (from `network_costs`)."""
    table = table.rename(index=TITLES)
    gflop = {"GFLOP for an image or volume, in training": table["gflop"]}
    return plot_bar_panels(gflop | {"MB moved for it, in 16 bits": table["megabytes_half"]})


def plot_speedups(speedups: pd.DataFrame) -> Picture:
    """Draw the speedup over fp32 on the same GPU, in TF32 and fp16 (from `speedups`)."""
    columns = ("tf32", "fp16")
    table = pd.concat({name: speedups[name].unstack("network", sort=False) for name in columns})
    table = table[table.notna().any(axis=1)]  # older GPUs have no TF32
    names = list(map(" ".join, table.index))
    colours = [GPU_COLOURS.get(gpu, ACCENT) for _, gpu in table.index]
    picture = Picture(9.5, 1.0 + 0.3 * len(table))
    for axes, (name, title) in zip(picture.panels(1, len(TITLES), sharey=True), TITLES.items()):
        words = table[name].map("{:.2f} ×".format)
        bars(axes, names, table[name], words=words, colours=colours, missing="failed")
        right = 1.5 * table.max().max()
        label(axes, title, size=10, xlabel="× fp32 on the same GPU", xlim=(0, right))
    return picture


def _span(measured: float, busy: float) -> str:
    """Return words for a speed and, if the GPU waited, for the speed of its busy time.

    They count as different only if a trace of one step shows it for certain.
    """
    waits = busy > measured / BUSY
    return f"{digits(measured)} to {digits(busy)}" if waits else digits(measured)


def plot_ladder(measurements: pd.DataFrame) -> Picture:
    """Draw each network's images/s in training, from fp32 to a compiled fp16.

    Pale: the speed if the GPU never waited, for steps that were traced. Rungs that no network has
    are left out.
    """
    all_measured, all_busy = (
        speeds_by_setting(measurements, column).reindex(columns=[*RUNGS.values()])
        for column in ("images_per_s", "images_per_busy_s")
    )
    rungs = [rung for rung, setting in RUNGS.items() if all_measured[setting].notna().any()]
    settings = [RUNGS[rung] for rung in rungs]
    colours = [SKY if RUNGS[rung][2] else FORMAT_COLOURS[RUNGS[rung][0]] for rung in rungs]
    picture = Picture(9.8, 1.0 + 0.3 * len(rungs))
    for axes, name in zip(picture.panels(1, len(TITLES), sharey=True), TITLES):
        measured, busy = (table.loc[name, settings] for table in (all_measured, all_busy))
        best = busy.fillna(measured)
        low = measured.where(busy > measured / BUSY, best)
        words = [
            f"{_span(*speeds)} ({ratio:.1f} ×)"
            for *speeds, ratio in zip(low, best, best / best.iloc[0])
        ]
        look = {"colours": colours, "pale": busy, "missing": "–", "room": 2.3}
        bars(axes, rungs, measured, words=words, **look)
        axes.locator_params(axis="x", nbins=5)
        title = f"{TITLES[name]}, batch {NETWORKS[name].batch_size}"
        label(axes, title, size=10, xlabel="images per second")
    heading(picture, measurements["machine"].iloc[0])
    return picture


def traced_steps(measurements: pd.DataFrame, network: str, *rungs: str) -> pd.DataFrame:
    """Return a network's traced training steps by rung and batch; by default of all RUNGS."""
    rows = measurements[measurements["network"] == network]
    rows = rows[rows["kinds"].notna()].sort_values("batch")
    names = {setting: rung for rung, setting in RUNGS.items()}
    settings = zip(rows["precision"], rows["layout"], rows["compile"])
    rows = rows.assign(rung=[names.get(setting) for setting in settings])
    rows = rows[rows["rung"].isin(rungs or RUNGS)]
    order = pd.Categorical(rows["rung"], categories=RUNGS)
    return rows.assign(rung=order).sort_values("rung", kind="stable")


def _all_traced_steps(measurements: pd.DataFrame, rungs: Sequence[str]) -> pd.DataFrame:
    """Return the traced steps of all networks, with words as the index."""
    steps = pd.concat([traced_steps(measurements, name, *rungs) for name in TITLES])
    rows = zip(steps["network"], steps["batch"], steps["rung"])
    return steps.set_axis([f"{TITLES[name]} ({batch}), {rung}" for name, batch, rung in rows])


def plot_time_by_kind(measurements: pd.DataFrame, *rungs: str) -> Picture:
    """Draw the GPU's time in a training step by what it does, for networks and rungs."""
    steps = _all_traced_steps(measurements, rungs)
    kinds = pd.DataFrame(steps["kinds"].tolist(), index=steps.index)
    on_tensor_cores = steps["tensor_core_share"]
    elsewhere = (kinds["products"] - on_tensor_cores).clip(lower=0)
    remaining = (kinds[name] for name in ("normalisation", "copies", "others"))
    parts = {
        name: 100 * share for name, share in zip(PARTS, (on_tensor_cores, elsewhere, *remaining))
    }
    picture = Picture(9.8, 1.3 + 0.3 * len(steps))
    axes = picture.panel()
    look = {"words": [""] * len(steps), "inside": "{share:.0%}", "colours": PARTS}
    stack(axes, steps.index, parts, **look)
    machine = measurements["machine"].iloc[0]
    label(axes, machine, xlabel="% of the GPU's time in a training step", xlim=(0, 100))
    legend(picture, 5)
    return picture


def plot_busy(measurements: pd.DataFrame, *rungs: str) -> Picture:
    """Draw the share of a training step in which the GPU has work, by network and rung."""
    steps = _all_traced_steps(measurements, rungs).dropna(subset="busy")
    words = map(_of_ms, steps["busy"] * steps["step_s"], steps["step_s"])
    picture = _plot_shares(steps["busy"], [*words], "the GPU is at work", "it waits for the host")
    label(picture.axes[0], measurements["machine"].iloc[0])
    return picture


def plot_scaling(table: pd.DataFrame) -> Picture:
    """Draw each GPU's computing time per step, for one and several (`scaling_efficiency`)."""
    names, words = [], []
    for (name, batch, gpus), row in table.iterrows():
        names.append(f"{TITLES[name]} ({batch}), {gpus} GPU" + "s" * (gpus > 1))
        efficiency = f"; efficiency {row['efficiency']:.0%}" * (gpus > 1)
        words.append(_of_ms(row["computing_s"], row["step_s"]) + efficiency)
    waits = "it sends, or waits for the host or a different GPU"
    return _plot_shares(table["computing"].set_axis(names), words, "a GPU computes", waits)


def _plot_shares(shares: pd.Series, words: Sequence[str], works: str, waits: str) -> Picture:
    """Draw the share of work in each step, with words at its end."""
    picture = Picture(9.5, 1.2 + 0.28 * len(shares))
    axes = picture.panel()
    parts = {works: 100 * shares, waits: 100 - 100 * shares}
    look = {"inside": "{share:.0%}", "colours": (BLUE, GREY), "room": 1.35}
    stack(axes, shares.index, parts, words=words, **look)
    label(axes, xlabel="% of a training step", xticks=range(0, 101, 20))
    legend(picture, 2)
    return picture


def _of_ms(seconds: float, step_s: float) -> str:
    return f"{digits(1e3 * seconds)} of {digits(1e3 * step_s)} ms"
