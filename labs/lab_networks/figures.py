"""Figures of the benchmark: what networks cost, how fast they are, and where their time goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle
from PIL import Image

from course.charts.base import (
    ACCENT,
    BLUE,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ON_LIGHT,
    ORANGE,
    SKY,
    Picture,
)
from course.charts.primitives import bars, heading, label, legend, plot_bar_panels, stack
from course.text import digits
from labs.lab_networks import boxes, volumes
from labs.lab_networks.catalogue import NETWORKS

TITLES = {"ssd300": "SSD300", "unet3d": "3D U-Net", "resnet50": "ResNet-50"}
MOSTLY = 0.95  # of a step: a GPU that is at work for longer does not wait
GPU_COLOURS = {"P100": GREY, "V100": SKY, "A100": BLUE}  # another's: ACCENT
# Rows of a ladder: its words, and which setting it is.
RUNGS = {
    "fp32": ("fp32", "contiguous", False),
    "TF32": ("tf32", "contiguous", False),
    "bf16": ("bf16", "contiguous", False),
    "fp16": ("fp16", "contiguous", False),
    "bf16, channels last": ("bf16", "channels_last", False),
    "fp16, channels last": ("fp16", "channels_last", False),
    "… compiled": ("fp16", "channels_last", True),
}
LIMITED_RUNGS = ("fp32", "TF32", "fp16, channels last")
PARTS = {
    "products on Tensor Cores": GREEN,
    "products elsewhere": ORANGE,
    "normalisation": BLUE,
    "copies": ACCENT,
    "all else": GREY,
}


def plot_costs(table: pd.DataFrame) -> Picture:
    """Draw operations and bytes of one image in training (`networks()`)."""
    table = table.rename(index=TITLES)
    gflop = {"GFLOP for one image, in training": table["gflop"]}
    return plot_bar_panels(gflop | {"MB moved for it, in 16 bits": table["megabytes_half"]})


def plot_beside(ratios: pd.DataFrame) -> Picture:
    """Draw ratios to fp32 on the same GPU, in TF32 and fp16.

    Args:
        ratios: of `published.ratios`, published ones alone or those of `measured.beside`.
    """
    columns = ("tf32", "fp16")
    table = pd.concat({each: ratios[each].unstack("network", sort=False) for each in columns})
    table = table[table.notna().any(axis=1)]  # older GPUs have no TF32
    names = list(map(" ".join, table.index))
    colours = [GPU_COLOURS.get(gpu, ACCENT) for _, gpu in table.index]
    picture = Picture(9.5, 1.0 + 0.3 * len(table))
    for axes, (name, title) in zip(picture.panels(1, len(TITLES), sharey=True), TITLES.items()):
        words = table[name].map("{:.2f} ×".format)
        bars(axes, names, table[name], words=words, colours=colours, missing="failed")
        most = 1.5 * table.max().max()
        label(axes, title, size=10, xlabel="× fp32 on the same GPU", xlim=(0, most))
    return picture


def _span(reached: float, at_work: float, form: Callable[[float], str] = digits) -> str:
    """Return words for what was reached and, if the GPU waited, for what its work allows.

    They count as different only if a trace of one step shows it for certain.
    """
    waits = at_work > reached / MOSTLY
    return f"{form(reached)} to {form(at_work)}" if waits else form(reached)


def plot_ladder(recorded: pd.DataFrame, mode: str = "train") -> Picture:
    """Draw images per second of each network, from fp32 to a compiled fp16 (`recorded`).

    Pale: if the GPU never waited, where steps were traced. Rungs that were measured on no
    network are left out.
    """
    tables = {name: _rungs(recorded, name, mode) for name in TITLES}
    there = [r for r in RUNGS if any(of.loc[r, "images_per_s"] > 0 for of in tables.values())]
    colours = [SKY if RUNGS[r][2] else FORMAT_COLOURS[RUNGS[r][0]] for r in there]
    picture = Picture(9.8, 1.0 + 0.3 * len(there))
    for axes, (name, table) in zip(picture.panels(1, len(TITLES), sharey=True), tables.items()):
        reached, at_work = (table.loc[there, each] for each in ("images_per_s", "at_work_per_s"))
        best = at_work.fillna(reached)
        low = reached.where(at_work > reached / MOSTLY, best)
        times = [f" ({each:.1f} ×)" for each in best / best.iloc[0]]
        words = [_span(*each) + ratio for *each, ratio in zip(low, best, times)]
        look = {"colours": colours, "pale": at_work, "missing": "–", "room": 2.3}
        bars(axes, there, reached, words=words, **look)
        axes.locator_params(axis="x", nbins=5)
        title = f"{TITLES[name]}, batch {NETWORKS[name].batch_size}"
        label(axes, title, size=10, xlabel="images per second")
    heading(picture, recorded["machine"].iloc[0])
    return picture


def _rungs(recorded: pd.DataFrame, network: str, mode: str) -> pd.DataFrame:
    """Return images_per_s and at_work_per_s by rung, at the published batch; NaN: not measured."""
    rows = recorded[(recorded["network"] == network) & (recorded["mode"] == mode)]
    rows = rows[(rows["batch"] == NETWORKS[network].batch_size) & (rows["data"] == "synthetic")]
    rows = rows.set_index(["precision", "layout", "compile"])[["images_per_s", "at_work_per_s"]]
    return rows.reindex([*RUNGS.values()]).set_axis([*RUNGS])


def plot_where(recorded: pd.DataFrame, *rungs: str) -> Picture:
    """Draw where the GPU's time of one training step goes, by network and rung.

    Args:
        rungs: of RUNGS; by default all of them.
    """
    steps = _steps(recorded, rungs)
    picture = Picture(9.8, 1.3 + 0.3 * len(steps))
    axes = picture.panel()
    parts = 100 * np.array([shares(row) for _, row in steps.iterrows()]).T
    look = {"words": [""] * len(steps), "inside": "{share:.0%}", "colours": PARTS}
    stack(axes, steps.index, dict(zip(PARTS, parts)), **look)
    machine = recorded["machine"].iloc[0]
    label(axes, machine, xlabel="% of the GPU's time in a training step", xlim=(0, 100))
    legend(picture, 5)
    return picture


def traced(recorded: pd.DataFrame, network: str) -> list[tuple[str, pd.Series]]:
    """Return a network's rows with a traced step, each with its rung, in RUNGS' order; by batch."""
    rows = recorded[(recorded["network"] == network) & (recorded["mode"] == "train")]
    rows = rows[[isinstance(each, dict) for each in rows["kinds"]]].sort_values("batch")
    of = rows.set_index(["precision", "layout", "compile"], drop=False)
    return [
        (rung, row)
        for rung, setting in RUNGS.items()
        if setting in of.index
        for _, row in of.loc[[setting]].iterrows()
    ]


def _steps(recorded: pd.DataFrame, rungs: Collection[str]) -> pd.DataFrame:
    """Return the traced steps of some rungs (of all if none is named), with words for an index."""
    rows = {
        f"{TITLES[name]} ({row['batch']}), {rung}": row
        for name in TITLES
        for rung, row in traced(recorded, name)
        if rung in (rungs or RUNGS)
    }
    return pd.DataFrame([*rows.values()], index=[*rows])


def shares(row: pd.Series) -> list[float]:
    """Return the shares of PARTS in the traced step of a row."""
    on, kinds = row["tensor_core_share"], row["kinds"]
    elsewhere = max(0.0, kinds["products"] - on)
    return [on, elsewhere, kinds["normalisation"], kinds["copies"], kinds["others"]]


def plot_reached(recorded: pd.DataFrame, limits: pd.DataFrame) -> Picture:
    """Draw images per second in training, as a share of the lower limit (`cost.bounds`).

    Pale: if the GPU never waited.
    """
    limits = limits.set_index(["network", "precision"])
    steps = _steps(recorded, LIMITED_RUNGS).join(limits, on=["network", "precision"])
    lower = steps[["memory", "arithmetic"]].min(axis=1)
    percent = 100 * steps[["images_per_s", "at_work_per_s"]].div(lower, axis=0)
    spans = [_span(*each, "{:.0f}".format) for each in percent.to_numpy()]
    words = [f"{span} % of what the {each} allows" for span, each in zip(spans, steps["nearer"])]
    colours = [ORANGE if each == "memory" else BLUE for each in steps["nearer"]]
    picture = Picture(9.5, 1.2 + 0.3 * len(steps))
    axes = picture.panel()
    look = {"words": words, "colours": colours, "pale": percent["at_work_per_s"]}
    bars(axes, steps.index, percent["images_per_s"], **look)
    label(axes, xlabel="% of the lower limit, reached in training", xlim=(0, 130))
    return picture


def plot_at_work(recorded: pd.DataFrame, *rungs: str) -> Picture:
    """Draw for which share of a training step the GPU has work, by network and rung.

    Args:
        rungs: of RUNGS; by default all of them.
    """
    steps = _steps(recorded, rungs).dropna(subset="busy")
    words = [_of_ms(row["busy"] * row["step_s"], row["step_s"]) for _, row in steps.iterrows()]
    picture = _worked(steps["busy"], words, "the GPU is at work", "it waits for the host")
    label(picture.axes[0], recorded["machine"].iloc[0])
    return picture


def plot_scaled(table: pd.DataFrame) -> Picture:
    """Draw what a GPU does in a step, alone and with others, and how efficient that is.

    Args:
        table: of `measured.scaling`.
    """
    worked, words = {}, []
    for (name, batch, gpus), row in table.iterrows():
        of_step = _of_ms(row["computing_s"], row["step_s"])
        words.append(of_step + f"; efficiency {row['efficiency']:.0%}" * (gpus > 1))
        worked[f"{TITLES[name]} ({batch}), {gpus} GPU" + "s" * (gpus > 1)] = row["computing"]
    waits = "it sends, or waits for the host or another GPU"
    return _worked(pd.Series(worked), words, "a GPU computes", waits)


def _worked(worked: pd.Series, words: Sequence[str], works: str, waits: str) -> Picture:
    """Draw the share of work in each step, with words at its end."""
    picture = Picture(9.5, 1.2 + 0.28 * len(worked))
    axes = picture.panel()
    parts = {works: 100 * worked, waits: 100 - 100 * worked}
    look = {"inside": "{share:.0%}", "colours": (BLUE, GREY), "room": 1.35}
    stack(axes, worked.index, parts, words=words, **look)
    label(axes, xlabel="% of a training step", xticks=range(0, 101, 20))
    legend(picture, 2)
    return picture


def _of_ms(seconds: float, step_s: float) -> str:
    return f"{digits(1e3 * seconds)} of {digits(1e3 * step_s)} ms"


def plot_fed(table: pd.DataFrame) -> Picture:
    """Draw images per second of random numbers on the GPU and of files (`measured.from_files`)."""
    rows = [*table.itertuples()]
    names = [f"{TITLES[row.Index]}, {row.workers:.0f} workers" for row in rows]
    counts = [f"{digits(row.photographs)} of {digits(row.synthetic)} images/s" for row in rows]
    words = [f"{row.kept:.0%}: {count}" for row, count in zip(rows, counts)]
    picture = Picture(9, 1.9)
    axes = picture.panel()
    bars(axes, names, 100 * table["kept"], words=words, colours=BLUE, room=1.4)
    label(axes, xlabel="from files, % of the images per second of random numbers on the GPU")
    return picture


def plot_samples() -> Picture:
    """Draw two images with their boxes, and a layer of a volume next to what its voxels are."""
    root, parts = boxes.ensure(), volumes.ensure()
    known = json.loads((root / boxes.BOXES).read_text())
    alt = "two images with boxes around pasted photographs; a layer of a volume with ellipsoids"
    picture = Picture(9.8, 2.5, alt)
    panels = picture.panels(1, 4, width_ratios=[4, 4, 3, 3])
    for axes, name in zip(panels, sorted(known)[1:3]):
        axes.imshow(Image.open(root / name))
        for each in known[name]:
            left, top, right, bottom = each["box"]
            box = Rectangle((left, top), right - left, bottom - top, fill=False, ec=ORANGE, lw=2)
            axes.add_patch(box)
            words = boxes.OBJECTS[each["label"] - 1]
            look = {"fontsize": 7, "color": ON_LIGHT, "backgroundcolor": ORANGE}
            axes.text(left + 4, top + 22, words, **look)
    bright, kind = np.load(sorted(parts.glob("[!.]*.npy"))[0])
    layer = int(np.argmax((kind == 2).sum((1, 2))))
    panels[2].imshow(bright[layer], cmap="gray")
    panels[3].imshow(kind[layer], cmap="viridis")
    for axes, title in zip(panels, ("for SSD300", "", "for 3D U-Net: a layer", "its voxels")):
        axes.axis("off")
        label(axes, title)
    return picture
