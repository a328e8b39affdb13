"""Pictures of the benchmark: what networks cost, how fast they are, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import (
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
    words_on,
)
from course.text import digits
from course.topics.networks import boxes, volumes
from course.topics.networks.catalogue import NETWORKS
from course.topics.networks.measured import AT_WORK

TITLES = {"ssd300": "SSD300", "unet3d": "3D U-Net", "resnet50": "ResNet-50"}
MOSTLY = 0.95  # of a step: a GPU that is at work for longer waits for nobody
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


def beside(ratios: pd.DataFrame) -> Picture:
    """Ratios to fp32 on the same GPU, in TF32 and fp16; faint: if the GPU never waited.

    Args:
        ratios: of `published.ratios`, published ones alone or those of `measured.beside`.
    """
    bars = {name: [*_ratios(ratios.loc[name])] for name in TITLES}
    told = [f"{TITLES[name]} {each.label} {each.said}" for name in TITLES for each in bars[name]]
    rows = max(map(len, bars.values()))
    picture = Picture(9.5, 1.0 + 0.34 * rows, "times as fast as fp32: " + ", ".join(told))
    most = max(each.longest for of in bars.values() for each in of)
    for axes, name in zip(picture.subplots(1, len(TITLES), sharex=True), TITLES):
        _drawn(axes, bars[name])
        axes.set_xlim(0, 1.6 * most)
        axes.set_xlabel("× fp32 on the same GPU", fontsize=9)
        axes.set_title(TITLES[name], loc="left", fontsize=10)
    return picture


@dataclass
class Bar:
    """What was reached; and, faint, what there would be if the GPU never waited for the host."""

    label: str
    reached: float
    at_work: float  # NaN: nobody knows
    hue: str
    said: str

    @property
    def longest(self) -> float:
        return float(np.nanmax([0.0, self.reached, self.at_work]))

    @property
    def waits(self) -> bool:
        """Whether the two differ by more than a trace of one step may."""
        return self.at_work > self.reached / MOSTLY


def _ratios(of: pd.DataFrame) -> Iterator[Bar]:
    """A bar for each GPU and precision; for a precision without units there is none."""
    for precision in ("tf32", "fp16"):
        for gpu, ratio in of[precision].items():
            if gpu.endswith(AT_WORK) or (precision == "tf32" and np.isnan(ratio)):
                continue
            at_work = of[precision].get(gpu + AT_WORK, np.nan)
            bar = Bar(f"{precision} {gpu}", ratio, at_work, GPU_COLOURS.get(gpu, ACCENT), "failed")
            if not np.isnan(ratio):
                bar.said = f"{ratio:.2f} to {at_work:.2f} ×" if bar.waits else f"{ratio:.2f} ×"
            yield bar


def _drawn(axes: Axes, bars: list[Bar]) -> None:
    for place, bar in enumerate(bars):
        axes.barh(place, bar.longest, color=bar.hue, height=0.66, alpha=0.4)
        axes.barh(place, np.nan_to_num(bar.reached), color=bar.hue, height=0.66)
        axes.text(bar.longest, place, f" {bar.said}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    clean(axes)


def of_network(recorded: pd.DataFrame, network: str, mode: str = "train") -> pd.DataFrame:
    """A network's rows at the published batch, of synthetic images."""
    rows = recorded[(recorded["network"] == network) & (recorded["mode"] == mode)]
    return rows[(rows["batch"] == NETWORKS[network].batch_size) & (rows["data"] == "synthetic")]


def ladder(recorded: pd.DataFrame, mode: str = "train") -> Picture:
    """Images a second of each network, from fp32 to a compiled fp16 (`recorded`); faint: if the
    GPU never waited, as far as steps were traced.

    Of rungs that no network has been measured on, there is none.
    """
    table = {name: rungs(recorded, name, mode) for name in TITLES}
    there = [r for r in RUNGS if any(of.loc[r, "images_per_s"] > 0 for of in table.values())]
    bars = {name: [*_climbed(of.loc[there])] for name, of in table.items()}
    told = [f"{TITLES[n]} {each.label} {each.said}" for n, of in bars.items() for each in of]
    picture = Picture(9.8, 1.0 + 0.3 * len(there), f"images a second, {mode}: " + ", ".join(told))
    for axes, name in zip(picture.subplots(1, len(TITLES), sharey=True), TITLES):
        _drawn(axes, bars[name])
        _say_reached(axes, bars[name])
        axes.set_xlim(0, 1.6 * max(each.longest for each in bars[name]))
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("images a second", fontsize=9)
        batch = NETWORKS[name].batch_size
        axes.set_title(f"{TITLES[name]}, batch {batch}", loc="left", fontsize=10)
    picture.suptitle(recorded["machine"].iloc[0], fontsize=9, x=0.01, ha="left")
    return picture


def rungs(recorded: pd.DataFrame, network: str, mode: str = "train") -> pd.DataFrame:
    """A network's images_per_s and at_work_per_s by rung of RUNGS; NaN: it was not measured."""
    rows = of_network(recorded, network, mode).set_index(["precision", "layout", "compile"])
    found = rows[["images_per_s", "at_work_per_s"]].reindex([*RUNGS.values()])
    return found.set_axis([*RUNGS])


def _climbed(speeds: pd.DataFrame) -> Iterator[Bar]:
    """A bar a rung; how many times as fast as the first, by the GPU's work where it is known."""
    best = speeds["at_work_per_s"].fillna(speeds["images_per_s"])
    for rung, row in speeds.iterrows():
        said = f"{digits(best[rung])} ({best[rung] / best.iloc[0]:.1f} ×)"
        said = "–" if np.isnan(best[rung]) else said
        yield Bar(str(rung), row["images_per_s"], row["at_work_per_s"], _hue(str(rung)), said)


def _say_reached(axes: Axes, bars: list[Bar]) -> None:
    """In the bar, where what stands at its end is not what was reached."""
    for place, bar in enumerate(bars):
        if bar.waits:
            ink, said = words_on(bar.hue), f"{digits(bar.reached)} "
            axes.text(bar.reached, place, said, va="center", ha="right", fontsize=8, color=ink)


def _hue(rung: str) -> str:
    precision, _, compiled = RUNGS[rung]
    return SKY if compiled else {**FORMAT_COLOURS, "fp16": PURPLE}[precision]


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
    """Images a second in training, as a share of the lower limit (`cost.bounds`); faint: if the
    GPU never waited."""
    limits = limits.set_index(["network", "precision"])
    bars = []
    for name in TITLES:
        for rung, row in traced(recorded, name):
            if rung in REACHED:
                label = f"{TITLES[name]} ({row['batch']}), {rung}"
                bars.append(_of_limit(label, row, limits.loc[(name, row["precision"])]))
    told = [f"{bar.label} {bar.said}" for bar in bars]
    picture = Picture(9.5, 1.2 + 0.3 * len(bars), "of the lower limit: " + ", ".join(told))
    axes = picture.add_subplot()
    _drawn(axes, bars)
    axes.set_xlim(0, 130)
    axes.set_xlabel("% of the lower limit, reached in training", fontsize=9)
    return picture


def _of_limit(label: str, row: pd.Series, limit: pd.Series) -> Bar:
    nearer = limit["nearer"]
    share, at_work = (100 * row[each] / limit[nearer] for each in ("images_per_s", "at_work_per_s"))
    bar = Bar(label, share, at_work, ORANGE if nearer == "memory" else BLUE, "")
    reached_ = f"{share:.0f} to {at_work:.0f} %" if bar.waits else f"{share:.0f} %"
    bar.said = f"{reached_} of what the {nearer} allows"
    return bar


def at_work(recorded: pd.DataFrame, *rungs: str) -> Picture:
    """For which share of a training step the GPU has work, by network and rung (`recorded`).

    Args:
        rungs: of RUNGS; without, all of them.
    """
    rows = [
        (
            f"{TITLES[name]} ({row['batch']}), {rung}",
            row["busy"],
            _of_ms(row["busy"] * row["step_s"], row["step_s"]),
        )
        for name in TITLES
        for rung, row in traced(recorded, name)
        if rung in (rungs or RUNGS) and not np.isnan(row["busy"])
    ]
    picture = _worked(rows, "the GPU is at work", "it waits for the host")
    picture.axes[0].set_title(recorded["machine"].iloc[0], loc="left", fontsize=9)
    return picture


def _worked(rows: list[tuple[str, float, str]], works: str, waits: str) -> Picture:
    """Bars of a step, each with its label, the share of work, and words at its end."""
    told = ", ".join(f"{label} {share:.0%}" for label, share, _ in rows)
    picture = Picture(9.5, 1.2 + 0.28 * len(rows), f"of a step, {works}: {told}")
    axes = picture.add_subplot()
    for place, (_, share, said) in enumerate(rows):
        parts = [
            (works, 100 * share, BLUE, f"{share:.0%}"),
            (waits, 100 - 100 * share, GREY, ""),
        ]
        stacked_bar(axes, place, parts, 0.72)
        axes.text(100, place, f" {said}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 135)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of a training step", fontsize=9)
    clean(axes)
    picture.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return picture


def _of_ms(seconds: float, step_s: float) -> str:
    return f"{digits(1e3 * seconds)} of {digits(1e3 * step_s)} ms"


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
    """What a GPU does in a step, alone and with others, and how efficient that is
    (`measured.scaling`, traced)."""
    rows = []
    for (name, batch, gpus), row in table.iterrows():
        said = _of_ms(row["computing_s"], row["step_s"])
        said += f"; efficiency {row['efficiency']:.0%}" * (gpus > 1)
        label = f"{TITLES[name]} ({batch}), {gpus} GPU" + "s" * (gpus > 1)
        rows.append((label, row["computing"], said))
    return _worked(rows, "a GPU computes", "it sends, or waits for the host or another GPU")


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
    bright, kind = np.load(sorted(parts.glob("[!.]*.npy"))[0])
    layer = int(np.argmax((kind == 2).sum((1, 2))))
    panels[2].imshow(bright[layer], cmap="gray")
    panels[3].imshow(kind[layer], cmap="viridis")
    for axes, title in zip(panels, ("for SSD300", "", "for 3D U-Net: a layer", "its voxels")):
        axes.axis("off")
        axes.set_title(title, fontsize=9, loc="left")
    return picture
