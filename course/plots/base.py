"""What every picture shares: its class, its colours, its plain frame."""

from __future__ import annotations

import base64
import html
import io
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import is_color_like, to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from course.text import ON_PAPER, wrapped

MARGIN = 6  # pixels between a title and what is beside it
FEWEST_LETTERS = 12  # of a title's line: no title is broken further
# Okabe and Ito's colours, which people with colour-blindness can tell apart.
PHASE_COLOURS = {
    "load": "#E69F00",
    "forward": "#56B4E9",
    "loss": "#CC79A7",
    "backward": "#0072B2",
    "optimizer": "#009E73",
}
GREY, DARK, ACCENT = "#9A9A9A", "#333333", "#D55E00"
BLUE, SKY, ORANGE, GREEN, PURPLE = "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"
FORMAT_COLOURS = {"fp32": BLUE, "tf32": GREEN, "bf16": ACCENT, "fp16": PURPLE, "half": GREY}


ON_LIGHT = "#101010"  # words on a light colour, in any theme
UNDER_WHITE = "#6B6B6B"  # a grey under white words, in any theme
# What is drawn in one of these is ink: light in a dark theme, where the page shines through.
DRAWN = (Text, Line2D, Patch, Collection)
INK, PAPER = {"#000000", "#262626", DARK}, "#ffffff"
LIGHT_INK, DARK_PAPER = "#d8d8d8", "#111111"
BOX, DARK_BOX = "#f6f6f4", "#2a2a2a"  # of drawings
# JupyterLab says in its page's body which theme it has, VS Code with a class. Others have paper.
STYLE = """<style>
body[data-jp-theme-light="false"] .course-dark, body.vscode-dark .course-dark {
  display: inline !important }
body[data-jp-theme-light="false"] .course-light, body.vscode-dark .course-light {
  display: none !important }
</style>"""
# Where a page's styles are not let in (an untrusted notebook), the one for paper is shown.
SHOWN = {"light": "max-width: 100%", "dark": "max-width: 100%; display: none"}


class Picture(Figure):
    """A figure that a notebook shows by itself, in a light and a dark theme, and under papermill.

    alt: what is to be seen, for those who do not see it; by default titles and axes.
    """

    def __init__(self, width: float, height: float, alt: str = "") -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        self._alt = alt

    @property
    def alt(self) -> str:
        if self._alt:
            return self._alt
        words = [self.get_suptitle()]
        for axes in self.axes:
            words += [axes.get_title("left"), axes.get_title(), axes.get_ylabel()]
            words += [axes.get_xlabel()]
        said = "; ".join(" ".join(each.split()) for each in dict.fromkeys(words) if each)
        return re.sub(r"[${}]", "", said)  # of formulas

    def fit_titles(self) -> None:
        """Break titles that would run out of the picture, or into the panel beside.

        Everything has its place then, for which a picture without such titles is laid out once.
        """
        self._lay_out()
        broken = False
        for axes in self.axes:
            said = {axes.get_title(place) for place in ("left", "center", "right")} - {""}
            for each in axes.get_children():
                if isinstance(each, Text) and each.get_text() in said:
                    broken |= self._fit(each, self._right_of(axes))
        if broken:
            self._lay_out()

    def _fit(self, title: Text, right: float) -> bool:
        """Was the title broken?"""
        text = title.get_text()
        letters = max(map(len, text.splitlines()))
        while title.get_window_extent().x1 > right and letters > FEWEST_LETTERS:
            letters -= 2
            title.set_text(wrapped(text, letters))
        return title.get_text() != text

    def _right_of(self, axes: Axes) -> float:
        """Where the next panel's title begins to the right of this one's, or the picture ends."""
        own = axes.get_window_extent()
        others = [each.get_window_extent() for each in self.axes if each is not axes]
        beside = [at.x0 for at in others if at.x0 > own.x0 + 1 and abs(at.y1 - own.y1) < 20]
        return min([*beside, self.bbox.x1]) - MARGIN

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Page and image from one drawing; to draw is what costs time."""
        light = self._repr_png_()
        image = base64.b64encode(light).decode()
        return {"text/html": self._page(light), "image/png": image, "text/plain": repr(self)}

    def _repr_png_(self) -> bytes:
        self.fit_titles()
        with self._laid_out():
            return self._drawn()

    def _repr_html_(self) -> str:
        return self._page(self._repr_png_())

    def _drawn(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def _page(self, light: bytes) -> str:
        """The picture for both themes, or on paper alone; the light one is there already."""
        drawn = {"light": light}
        with self._in_the_dark(), self._laid_out():  # on paper too: what cannot be darkened fails
            if ON_PAPER not in os.environ:
                drawn["dark"] = self._drawn()
        alt = html.escape(self.alt or "a picture", quote=True)
        shown = "".join(
            f'<img class="course-{theme}" alt="{alt}" style="{SHOWN[theme]}" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for theme, png in drawn.items()
        )
        return f"{STYLE}{shown}" if "dark" in drawn else shown

    def _lay_out(self) -> None:
        """Find a place for everything, and draw nothing."""
        if engine := self.get_layout_engine():
            engine.execute(self)

    @contextmanager
    def _laid_out(self) -> Iterator[None]:
        """Everything keeps the place that it has: to find places takes as long as to draw.

        Without an engine at all: with one that does nothing, everything would be drawn twice.
        """
        engine = self.get_layout_engine()
        with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
            self.set_layout_engine(None)
        try:
            yield
        finally:
            self.set_layout_engine(engine)

    @contextmanager
    def _in_the_dark(self) -> Iterator[None]:
        """Ink becomes light and paper is left out, as long as this lasts."""
        changed = []
        panels = [self.patch, *(axes.patch for axes in self.axes)]
        artists = self.findobj(lambda each: isinstance(each, DRAWN))
        # An arrow is no child of its words.
        arrows = [getattr(each, "arrow_patch", None) for each in artists]
        for artist in [*artists, *filter(None, arrows)]:
            # White words stand on something coloured; through the panels the page shines.
            paper = PAPER if isinstance(artist, Text) else DARK_PAPER
            paper = "none" if artist in panels else paper
            for get, put in _colours(artist):
                was = get()
                if (now := _darkened(was, paper)) is not was:
                    put(now)
                    changed.append((put, was))
        try:
            yield
        finally:
            for put, was in reversed(changed):
                put(was)


def _colours(artist: Artist) -> list[tuple[Callable, Callable]]:
    """How to ask for each colour of an artist, and how to set it."""
    names = ["color"]
    if isinstance(artist, Patch | Collection):
        names = ["facecolor", "edgecolor"]
    elif isinstance(artist, Line2D):
        names = ["color", "markerfacecolor", "markeredgecolor"]
    return [(getattr(artist, f"get_{name}"), getattr(artist, f"set_{name}")) for name in names]


def _darkened(colour: Any, paper: str) -> Any:
    """A colour, or several, in a dark theme: ink is light, and paper dark; all others stay."""
    if isinstance(colour, np.ndarray) and colour.ndim == 2:
        rows = [tuple(each) for each in colour]
        dark = [_darkened(each, paper) for each in rows]
        return colour if all(map(operator.is_, rows, dark)) else dark
    if not is_color_like(colour) or colour == "none":
        return colour
    name, alpha = to_hex(colour), to_rgba(colour)[3]
    dark = {**dict.fromkeys(INK, LIGHT_INK), PAPER: paper, BOX: DARK_BOX}
    if name not in dark or not alpha:
        return colour
    return dark[name] if dark[name] == "none" else to_rgba(dark[name], alpha)


def words_on(colour: str) -> str:
    """The colour, the same in any theme, in which words are easiest to read on this one."""
    return max((PAPER, ON_LIGHT), key=lambda words: contrast(words, colour))


def contrast(one: str, other: str) -> float:
    """How well one colour is read on the other, from 1 to 21 (WCAG 2.2; words need 4.5)."""
    dark, light = sorted(_luminance(each) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def clean(axes: Axes) -> None:
    """Take away the frame's upper and right edge, and make the labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def stacked_bar(
    axes: Axes, place: int, parts: Iterable[tuple[str, float, str, str]], height: float
) -> float:
    """A horizontal bar of parts: (label, width, colour, words in its middle). Where does it end?

    The legend gets the labels from the bar at place 0 alone.
    """
    begin = 0.0
    for label, width, colour, words in parts:
        shown = label if place == 0 else None
        axes.barh(place, width, left=begin, color=colour, height=height, label=shown)
        if words:
            middle = begin + width / 2
            ink = words_on(colour)
            axes.text(middle, place, words, ha="center", va="center", color=ink, fontsize=9)
        begin += width
    return begin
