"""Pictures of the benchmark: what networks cost, how fast they are, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.plots.base import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    clean,
    stacked_bar,
)
from course.text import digits
from course.topics.networks import boxes, volumes
from course.topics.networks.catalogue import NETWORKS

TITLES = {"ssd300": "SSD300", "unet3d": "3D U-Net", "resnet50": "ResNet-50"}
GPU_COLOURS = {"P100": GREY, "V100": SKY, "A100": BLUE}
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
PARTS = (
    ("products on Tensor Cores", GREEN),
    ("products elsewhere", ORANGE),
    ("normalisation", BLUE),
    ("copies", ACCENT),
    ("all else", GREY),
)


def costs(table: pd.DataFrame) -> Picture:
    """Operations and bytes of one image in training (`networks()`)."""
    told = ", ".join(f"{TITLES[n]} {digits(row.gflop)} GFLOP" for n, row in table.iterrows())
    picture = Picture(9.5, 1.9, f"one image's training step: {told}")
    names = [TITLES[name] for name in table.index]
    columns = {
        "gflop": "GFLOP for one image, in training",
        "megabytes_half": "MB moved for it, in 16 bits",
    }
    for axes, (column, title) in zip(picture.subplots(1, 2, sharey=True), columns.items()):
        for place, value in enumerate(table[column]):
            axes.plot(value, place, "o", color=BLUE, ms=8)
            axes.text(1.25 * value, place, digits(value), va="center", fontsize=9, color=DARK)
        axes.set_xscale("log")
        axes.set_xlim(table[column].min() / 2, 5 * table[column].max())
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="x", color=GREY, alpha=0.3)
        clean(axes)
    return picture


def published_ratios(ratios: pd.DataFrame) -> Picture:
    """fp16 against fp32 on each GPU, as published (`published.ratios()`)."""
    told = [f"{TITLES[n]} on {gpu} {r:.2f}" for (n, gpu), r in ratios["fp16"].dropna().items()]
    picture = Picture(9.5, 2.5, "times as fast in fp16 as in fp32: " + ", ".join(told))
    for axes, name in zip(picture.subplots(1, len(TITLES), sharex=True), TITLES):
        rows = ratios.loc[name, "fp16"]
        for place, (gpu, ratio) in enumerate(rows.items()):
            axes.barh(place, 0 if np.isnan(ratio) else ratio, color=GPU_COLOURS[gpu], height=0.62)
            said = "failed" if np.isnan(ratio) else f"{ratio:.2f} ×"
            axes.text(np.nan_to_num(ratio), place, f" {said}", va="center", fontsize=9, color=DARK)
        axes.set_yticks(range(len(rows)), list(rows.index))
        axes.invert_yaxis()
        axes.axvline(1, color=DARK, lw=0.8, ls=":")
        axes.set_title(TITLES[name], loc="left", fontsize=10)
        axes.set_xlabel("× fp32, as published", fontsize=9)
        axes.set_xlim(0, 10.5)
        clean(axes)
    return picture


def beside(recorded: pd.DataFrame, ratios: pd.DataFrame) -> Picture:
    """Ratios to fp32 in TF32 and fp16: as published for three GPUs, and as recorded.

    Args:
        recorded: of `measured.recorded`; ratios: of `published.ratios`.
    """
    bars = {name: [*_ratios(name, ratios, _ours(recorded, name))] for name in TITLES}
    told = [f"{TITLES[name]} {label} {bar:.2f}" for name in TITLES for label, bar, _ in bars[name]]
    picture = Picture(9.5, 3.1, "times as fast as fp32: " + ", ".join(told))
    most = max(bar for each in bars.values() for _, bar, _ in each)
    for axes, name in zip(picture.subplots(1, len(TITLES), sharex=True), TITLES):
        for place, (_, bar, hue) in enumerate(bars[name]):
            axes.barh(place, bar, color=hue, height=0.62)
            axes.text(bar, place, f" {bar:.2f} ×", va="center", fontsize=9, color=DARK)
        axes.set_yticks(range(len(bars[name])), [label for label, *_ in bars[name]])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.35 * most)
        axes.set_xlabel("× fp32 on the same GPU", fontsize=9)
        axes.set_title(TITLES[name], loc="left", fontsize=10)
        clean(axes)
    return picture


def _ratios(
    network: str, published: pd.DataFrame, ours: pd.Series
) -> Iterator[tuple[str, float, str]]:
    """Label, ratio and colour of each bar; what failed, or a GPU has not, is none."""
    for precision in ("tf32", "fp16"):
        known = {gpu: published.loc[(network, gpu), precision] for gpu in GPU_COLOURS}
        for gpu, ratio in (known | {"H100": ours.get(precision, np.nan)}).items():
            if not np.isnan(ratio):
                yield f"{precision} {gpu}", ratio, GPU_COLOURS.get(gpu, ACCENT)


def _ours(recorded: pd.DataFrame, network: str) -> pd.Series:
    rows = of_network(recorded, network)
    plain = rows[(rows["layout"] == "contiguous") & ~rows["compile"]]
    return plain.set_index("precision")["against_fp32"]


def of_network(recorded: pd.DataFrame, network: str, mode: str = "train") -> pd.DataFrame:
    """A network's rows at the published batch, of synthetic images."""
    rows = recorded[(recorded["network"] == network) & (recorded["mode"] == mode)]
    return rows[(rows["batch"] == NETWORKS[network].batch_size) & (rows["data"] == "synthetic")]


def ladder(recorded: pd.DataFrame, mode: str = "train") -> Picture:
    """Images a second of each network, from fp32 to a compiled fp16 (`recorded`).

    Of rungs that no network has been measured on, there is none.
    """
    table = pd.DataFrame({name: rungs(recorded, name, mode) for name in TITLES})
    speeds = table.dropna(how="all")
    told = [f"{TITLES[n]} {digits(s.iloc[0])} to {digits(s.max())}" for n, s in speeds.items()]
    words = f"images a second, {mode}, from fp32 to the fastest: " + ", ".join(told)
    picture = Picture(9.8, 1.0 + 0.3 * len(speeds), words)
    for axes, name in zip(picture.subplots(1, len(TITLES), sharey=True), TITLES):
        _climbed(axes, speeds[name])
        batch = NETWORKS[name].batch_size
        axes.set_title(f"{TITLES[name]}, batch {batch}", loc="left", fontsize=10)
    picture.suptitle(recorded["machine"].iloc[0], fontsize=9, x=0.01, ha="left")
    return picture


def rungs(recorded: pd.DataFrame, network: str, mode: str = "train") -> pd.Series:
    """A network's images a second by rung of RUNGS; NaN where it was not measured."""
    rows = of_network(recorded, network, mode).set_index(["precision", "layout", "compile"])
    return rows["images_per_s"].reindex([*RUNGS.values()]).set_axis([*RUNGS])


def _climbed(axes: Axes, speeds: pd.Series) -> None:
    for place, (rung, speed) in enumerate(speeds.items()):
        axes.barh(place, np.nan_to_num(speed), color=_hue(rung), height=0.66)
        said = "–" if np.isnan(speed) else f"{digits(speed)} ({speed / speeds.iloc[0]:.1f} ×)"
        axes.text(np.nan_to_num(speed), place, f" {said}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(speeds)), list(speeds.index))
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * speeds.max())
    axes.set_xlabel("images a second", fontsize=9)
    clean(axes)


def _hue(rung: str) -> str:
    precision, _, compiled = RUNGS[rung]
    return DARK if compiled else {**FORMAT_COLOURS, "fp16": PURPLE}[precision]


def where(recorded: pd.DataFrame, *rungs: str) -> Picture:
    """Where the GPU's time of one training step goes, by network and rung (all that were traced).

    Args:
        rungs: of RUNGS; without, all of them.
    """
    bars = [
        (f"{TITLES[row['network']]} ({row['batch']}), {rung}", shares(row))
        for name in TITLES
        for rung, row in traced(recorded, name)
        if rung in (rungs or RUNGS)
    ]
    told = [f"{label} {parts[0]:.0%}" for label, parts in bars]
    picture = Picture(9.8, 1.3 + 0.3 * len(bars), "on Tensor Cores: " + ", ".join(told))
    axes = picture.add_subplot()
    for place, (_, parts) in enumerate(bars):
        widths = [
            (label, 100 * share, hue, f"{share:.0%}" if share > 0.05 else "")
            for (label, hue), share in zip(PARTS, parts)
        ]
        stacked_bar(axes, place, widths, 0.72)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the GPU's time in a training step", fontsize=9)
    axes.set_title(recorded["machine"].iloc[0], loc="left", fontsize=9)
    clean(axes)
    picture.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return picture


def traced(recorded: pd.DataFrame, network: str) -> list[tuple[str, pd.Series]]:
    """A network's rows with a traced step, each with its rung, in RUNGS' order; by batch."""
    rows = recorded[(recorded["network"] == network) & (recorded["mode"] == "train")]
    rows = rows[[isinstance(each, dict) for each in rows["kinds"]]].sort_values("batch")
    of = rows.set_index(["precision", "layout", "compile"], drop=False)
    return [
        (rung, row)
        for rung, setting in RUNGS.items()
        if setting in of.index
        for _, row in of.loc[[setting]].iterrows()
    ]


def shares(row: pd.Series) -> list[float]:
    """Of PARTS, as the traced step of a row has them."""
    on, kinds = row["tensor_core_share"], row["kinds"]
    elsewhere = max(0.0, kinds["products"] - on)
    return [on, elsewhere, kinds["normalisation"], kinds["copies"], kinds["others"]]


REACHED = ("fp32", "TF32", "fp16, channels last")


def reached(recorded: pd.DataFrame, limits: pd.DataFrame) -> Picture:
    """Images a second in training, as a share of the lower limit (`cost.bounds`)."""
    limits = limits.set_index(["network", "precision"])
    bars = []
    for name in TITLES:
        for rung, row in traced(recorded, name):
            limit = limits.loc[(name, row["precision"])]
            share = row["images_per_s"] / limit[limit["nearer"]]
            label = f"{TITLES[name]} ({row['batch']}), {rung}"
            bars += [(label, share, limit["nearer"])] * (rung in REACHED)
    told = [f"{label} {share:.0%} of {nearer}" for label, share, nearer in bars]
    picture = Picture(9.5, 1.2 + 0.3 * len(bars), "of the lower limit: " + ", ".join(told))
    axes = picture.add_subplot()
    for place, (_, share, nearer) in enumerate(bars):
        hue = ORANGE if nearer == "memory" else BLUE
        axes.barh(place, 100 * share, color=hue, height=0.66)
        said = f" {share:.0%} of what the {nearer} allows"
        axes.text(100 * share, place, said, va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 130)
    axes.set_xlabel("% of the lower limit, reached in training", fontsize=9)
    clean(axes)
    return picture


def at_work(recorded: pd.DataFrame, *rungs: str) -> Picture:
    """For which share of a training step the GPU has work, by network and rung (`recorded`).

    Args:
        rungs: of RUNGS; without, all of them.
    """
    bars = [
        (f"{TITLES[name]} ({row['batch']}), {rung}", row["busy"])
        for name in TITLES
        for rung, row in traced(recorded, name)
        if rung in (rungs or RUNGS) and not np.isnan(row["busy"])
    ]
    told = ", ".join(f"{label} {share:.0%}" for label, share in bars)
    picture = Picture(9.5, 1.0 + 0.28 * len(bars), f"of a step the GPU is at work: {told}")
    axes = picture.add_subplot()
    for place, (_, share) in enumerate(bars):
        parts = [("at work", 100 * share, BLUE, f"{share:.0%}"), ("", 100 - 100 * share, GREY, "")]
        stacked_bar(axes, place, parts, 0.72)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of a step in which the GPU has work; else it waits for the host", fontsize=9)
    axes.set_title(recorded["machine"].iloc[0], loc="left", fontsize=9)
    clean(axes)
    return picture


def fed(table: pd.DataFrame) -> Picture:
    """Images a second from random numbers on the GPU and from files (`measured.from_files`)."""
    told = ", ".join(f"{TITLES[name]} keeps {row.kept:.0%}" for name, row in table.iterrows())
    picture = Picture(9.0, 1.9, f"images a second, synthetic and from files: {told}")
    for axes, (name, row) in zip(np.atleast_1d(picture.subplots(1, len(table))), table.iterrows()):
        for place, (what, hue) in enumerate((("synthetic", GREY), ("photographs", BLUE))):
            said = f" {digits(row[what])}" + f" ({row['kept']:.0%})" * (what != "synthetic")
            axes.barh(place, row[what], color=hue, height=0.62)
            axes.text(row[what], place, said, va="center", fontsize=9, color=DARK)
        axes.set_yticks((0, 1), ("random", f"files, {row['workers']:.0f} workers"))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.5 * row[["synthetic", "photographs"]].max())
        axes.set_xlabel("images a second", fontsize=9)
        axes.set_title(TITLES[name], loc="left", fontsize=10)
        clean(axes)
    return picture


def scaled(table: pd.DataFrame) -> Picture:
    """Efficiency on several GPUs, by network and batch of each (`measured.scaling`)."""
    most = next(column for column in table if str(column).endswith("GPUs"))
    labels = [f"{TITLES[name]} ({batch})" for name, batch in table.index]
    told = ", ".join(f"{label} {each:.0%}" for label, each in zip(labels, table["efficiency"]))
    picture = Picture(9.0, 0.9 + 0.34 * len(table), f"efficiency on {most}: {told}")
    axes = picture.add_subplot()
    for place, (_, row) in enumerate(table.iterrows()):
        axes.barh(place, 100 * row["efficiency"], color=BLUE, height=0.66)
        said = f" {row['efficiency']:.0%}: {digits(row['one GPU'])} → {digits(row[most])}"
        known = not np.isnan(row["busy"])
        said += f"; at work {row['busy']:.0%} of a step" if known else ""
        said += f", {row['exposed']:.0%} for sending alone" if known else ""
        axes.text(100 * row["efficiency"], place, said, va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(table)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 210)
    axes.set_xticks((0, 25, 50, 75, 100))
    axes.set_xlabel(f"efficiency on {most}, % of that many times one GPU", fontsize=9)
    clean(axes)
    return picture


def samples() -> Picture:
    """Two images with their boxes, and a layer of a volume beside what its voxels are."""
    import json

    from PIL import Image

    root, parts = boxes.ensure(), volumes.ensure()
    known = json.loads((root / boxes.BOXES).read_text())
    alt = "two images with boxes around pasted photographs; a layer of a volume with ellipsoids"
    picture = Picture(9.8, 2.5, alt)
    panels = picture.subplots(1, 4, width_ratios=[4, 4, 3, 3])
    for axes, name in zip(panels, sorted(known)[1:3]):
        axes.imshow(Image.open(root / name))
        for each in known[name]:
            left, top, right, bottom = each["box"]
            box = Rectangle((left, top), right - left, bottom - top, fill=False, ec=ORANGE, lw=2)
            axes.add_patch(box)
            label = boxes.OBJECTS[each["label"] - 1]
            axes.text(
                left + 4, top + 22, label, fontsize=7, color="#101010", backgroundcolor=ORANGE
            )
    bright, kind = np.load(sorted(parts.glob("*.npy"))[0])
    layer = int(np.argmax((kind == 2).sum((1, 2))))
    panels[2].imshow(bright[layer], cmap="gray")
    panels[3].imshow(kind[layer], cmap="viridis")
    for axes, title in zip(panels, ("for SSD300", "", "for 3D U-Net: a layer", "its voxels")):
        axes.axis("off")
        axes.set_title(title, fontsize=9, loc="left")
    return picture
