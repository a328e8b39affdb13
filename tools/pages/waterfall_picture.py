"""The ladder as a waterfall: each rung on top of the one before it, under the machine's walls."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import ACCENT, BLUE, DARK, GREY, ORANGE, PURPLE, Picture, clean
from course.text import digits

WIDTH = 0.8  # of a bar
COLOURS = (PURPLE, ORANGE, GREY)  # of the walls, in their order


def waterfall(steps: pd.DataFrame, walls: pd.DataFrame) -> Picture:
    """What each rung added to the images per second of those before it, and the walls above.

    On each bar stand the images per second reached and the ratio to the step before; in it, how
    much of its own ceiling a rung reaches. A wall above the picture is an arrow and a number.

    Args:
        steps, walls: what `tools.pages.waterfall` returns.
    """
    picture = Picture(8.5, 5.4)
    axes = picture.add_subplot()
    top = 1.22 * steps["images_per_s"].max()
    axes.set(xlim=(-0.55, len(steps) - 0.45), ylim=(0, top))
    _walls(axes, walls, top)
    _bars(axes, steps, top)
    names = steps["rung"] + "\n" + steps["precision"]
    axes.set_xticks(range(len(steps)), names)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("images per second")
    axes.set_title("\n".join(_where(steps)), loc="left", fontsize=9)
    clean(axes)
    return picture


def _bars(axes: Axes, steps: pd.DataFrame, top: float) -> None:
    for place, row in enumerate(steps.itertuples()):
        is_rung = place == 0 or pd.notna(row.share)
        axes.bar(
            place,
            row.added,
            WIDTH,
            bottom=row.images_per_s - row.added,
            color=BLUE if is_rung else ACCENT,
        )
        axes.vlines(place, row.images_per_s_q1, row.images_per_s_q3, DARK, lw=1.5)
        if place + 1 < len(steps):  # the next one stands here
            axes.hlines(row.images_per_s, place + WIDTH / 2, place + 1 - WIDTH / 2, GREY, lw=1)
        said = digits(row.images_per_s)
        if pd.notna(row.ratio):
            said += f", ×{row.ratio:.2f}" if row.ratio < 10 else f", ×{row.ratio:.0f}"
        if pd.notna(row.share):
            unit = f" {row.precision}" * (row.wall == "arithmetic")  # the wall drawn is another's
            share = f"{row.share:.0%} of{unit}\n{row.wall}"
            if row.added > 0.09 * top:  # room for two lines
                axes.text(
                    place,
                    row.images_per_s - top * 0.01,
                    share,
                    ha="center",
                    va="top",
                    fontsize=9,
                    color="white",
                )
            else:
                said += f"\n{share}"
        axes.text(
            place, row.images_per_s_q3 + top * 0.012, said, ha="center", va="bottom", fontsize=9
        )


def _walls(axes: Axes, walls: pd.DataFrame, top: float) -> None:
    left = axes.get_xlim()[0]
    for row, colour in zip(walls.itertuples(), COLOURS):
        speeds = dict.fromkeys(f"{round(speed, -2):,.0f}" for speed in (row.low, row.high))
        said = f"{row.wall}: {row.cost} an image, {' to '.join(speeds)} images/s"
        if row.low > top:
            axes.annotate(
                said,
                (left + 0.12, top),
                (left + 0.22, top * 0.985),
                va="top",
                fontsize=9,
                color=DARK,
            )
            axes.annotate(
                "",
                (left + 0.12, top),
                (left + 0.12, top * 0.93),
                arrowprops={"arrowstyle": "->", "color": DARK},
            )
            continue
        axes.axhspan(row.low, row.high, color=colour, alpha=0.3, lw=0)
        axes.axhline(row.low, color=colour, lw=1.5)
        axes.text(left + 0.06, row.low - top * 0.008, said, va="top", fontsize=9, color=DARK)


def _where(steps: pd.DataFrame) -> list[str]:
    """What was measured where and when: a line for steps in a row that were measured alike."""
    lines = list(dict.fromkeys(steps["setup"]))
    alike = steps["machine"].ne(steps["machine"].shift()).cumsum()
    for _, rows in steps.groupby(alike):
        named = " to ".join(dict.fromkeys((rows["rung"].iloc[0], rows["rung"].iloc[-1])))
        lines.append(f"{named}: {rows['machine'].iloc[0]}")
    return lines
