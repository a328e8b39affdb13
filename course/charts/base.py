"""What all figures share: `Picture`, its two themes, and colours."""

from __future__ import annotations

import base64
import html
import io
import os
import re
from collections.abc import Callable, Iterator
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

from course.text import ON_PAPER, wrap_text

MARGIN = 6  # pixels between a title and the next panel
SHORTEST_LINE = 12  # characters of a title that is broken into lines
# Okabe and Ito's colours, which people with colour-blindness can tell apart.
GREY, DARK, ACCENT = "#9A9A9A", "#333333", "#D55E00"
BLUE, SKY, ORANGE, GREEN, PURPLE = "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"
PHASE_COLOURS = {
    "load": ORANGE,
    "forward": SKY,
    "loss": PURPLE,
    "backward": BLUE,
    "optimizer": GREEN,
}
FORMAT_COLOURS = {"fp32": BLUE, "tf32": GREEN, "bf16": ACCENT, "fp16": PURPLE, "half": GREY}
ON_LIGHT = "#101010"  # text on a light colour, in both themes
UNDER_WHITE = "#6B6B6B"  # a grey below white text, in both themes
PALE = GREY + "40"  # what is absent; the page shines through it

# The dark theme has the same figure with ink made light and paper made dark or transparent.
# One drawing for both themes is not enough: ink that is as readable on white as on JupyterLab's
# #111111 has a contrast of 4.3 on either, where text needs 4.5, and small text gets pale.
INK, PAPER, BOX = {"#000000", "#262626", DARK}, "#ffffff", "#f6f6f4"
LIGHT_INK, DARK_PAPER, DARK_BOX = "#d8d8d8", "#111111", "#2a2a2a"
# JupyterLab sets an attribute of the page's body in its dark theme, VS Code a class.
STYLE = """<style>
body[data-jp-theme-light="false"] .course-dark, body.vscode-dark .course-dark {
  display: inline !important }
body[data-jp-theme-light="false"] .course-light, body.vscode-dark .course-light {
  display: none !important }
</style>"""
# An untrusted notebook ignores the style and shows the light image.
SHOWN = {"light": "max-width: 100%", "dark": "max-width: 100%; display: none"}


class Picture(Figure):
    """A figure that a notebook displays in a light and a dark theme.

    alt: text for those who cannot see the figure; by default each panel's title, axes, and the
        values that primitives have drawn in it.
    """

    def __init__(self, width: float, height: float, alt: str = "") -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        self._alt = alt
        self.values: dict[Axes, list[str]] = {}  # by panel, for the alt text

    def panel(self) -> Axes:
        """Add the figure's only panel."""
        return self.panels()[0]

    def panels(self, rows: int = 1, columns: int = 1, **settings: Any) -> list[Axes]:
        """Add panels without a frame, row by row; settings are those of `Figure.subplots`."""
        grid = self.subplots(rows, columns, squeeze=False, **settings).ravel().tolist()
        for axes in grid:
            clean(axes)
        return grid

    @property
    def alt(self) -> str:
        if self._alt:
            return self._alt
        words = [self.get_suptitle()]
        for axes in self.axes:
            names = (axes.get_title("left"), axes.get_title(), axes.get_ylabel(), axes.get_xlabel())
            words += [name for name in names if name not in words]
            words += self.values.get(axes, [])
        text = "; ".join(" ".join(each.split()) for each in words if each)
        return re.sub(r"[${}]", "", text)  # of formulas

    def _lay_out(self) -> None:
        """Place everything once, and break titles that would run into the next panel."""
        if (engine := self.get_layout_engine()) is None:
            return
        engine.execute(self)
        if any([self._fit_titles(axes) for axes in self.axes]):
            engine.execute(self)
        # Without an engine: each of the drawings would place everything again.
        with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
            self.set_layout_engine(None)

    def _fit_titles(self, axes: Axes) -> bool:
        """Break the titles of a panel that are too long for it; return whether any was."""
        box = axes.get_window_extent()
        others = [each.get_window_extent() for each in self.axes if each is not axes]
        next_panels = [at.x0 for at in others if at.x0 > box.x0 + 1 and abs(at.y1 - box.y1) < 20]
        right = min([*next_panels, self.bbox.x1]) - MARGIN
        titles = {axes.get_title(place) for place in ("left", "center", "right")} - {""}
        broken = False
        for title in axes.get_children():
            if isinstance(title, Text) and (text := title.get_text()) in titles:
                length = max(map(len, text.splitlines()))
                while title.get_window_extent().x1 > right and length > SHORTEST_LINE:
                    length -= 2
                    title.set_text(wrap_text(text, length))
                    broken = True
        return broken

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        light = self._repr_png_()
        image = base64.b64encode(light).decode()
        return {"text/html": self._page(light), "image/png": image, "text/plain": repr(self)}

    def _repr_png_(self) -> bytes:
        self._lay_out()
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        return self._page(self._repr_png_())

    def _page(self, light: bytes) -> str:
        """Return the image for both themes; only the light one if it goes on paper."""
        images = {"light": light}
        with self._in_the_dark():  # on paper, too, so that a colour that fails is noticed
            if ON_PAPER not in os.environ:
                images["dark"] = self._repr_png_()
        alt = html.escape(self.alt or "a figure", quote=True)
        page = "".join(
            f'<img class="course-{theme}" alt="{alt}" style="{SHOWN[theme]}" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for theme, png in images.items()
        )
        return f"{STYLE}{page}" if "dark" in images else page

    @contextmanager
    def _in_the_dark(self) -> Iterator[None]:
        """Make ink light and paper dark for as long as the context lasts."""
        changes = []
        panels = [self.patch, *(axes.patch for axes in self.axes)]
        artists = self.findobj(lambda each: isinstance(each, Text | Line2D | Patch | Collection))
        arrows = [getattr(each, "arrow_patch", None) for each in artists]  # not found otherwise
        for artist in [*artists, *filter(None, arrows)]:
            # White text is on something coloured; the page shows through the panels.
            paper = PAPER if isinstance(artist, Text) else DARK_PAPER
            paper = "none" if artist in panels else paper
            for get, put in _colours(artist):
                was = get()
                if (now := _darkened(was, paper)) is not was:
                    put(now)
                    changes.append((put, was))
        try:
            yield
        finally:
            for put, was in reversed(changes):
                put(was)


def _colours(artist: Artist) -> list[tuple[Callable, Callable]]:
    """Return the getter and the setter of each colour of an artist."""
    names = ["color"]
    if isinstance(artist, Patch | Collection):
        names = ["facecolor", "edgecolor"]
    elif isinstance(artist, Line2D):
        names = ["color", "markerfacecolor", "markeredgecolor"]
    return [(getattr(artist, f"get_{name}"), getattr(artist, f"set_{name}")) for name in names]


def _darkened(colour: Any, paper: str) -> Any:
    """Return a colour, or an array of colours, as the dark theme has it."""
    if isinstance(colour, np.ndarray) and colour.ndim == 2:
        rows = [tuple(each) for each in colour]
        dark = [_darkened(each, paper) for each in rows]
        return dark if any(a is not b for a, b in zip(rows, dark)) else colour
    if not is_color_like(colour) or colour == "none":
        return colour
    name, alpha = to_hex(colour), to_rgba(colour)[3]
    dark = {**dict.fromkeys(INK, LIGHT_INK), PAPER: paper, BOX: DARK_BOX}
    if name not in dark or not alpha:
        return colour
    return dark[name] if dark[name] == "none" else to_rgba(dark[name], alpha)


def words_on(colour: str) -> str:
    """Return the text colour, white or black in both themes, that is most readable on a colour.

    On PALE, through which the page shines, it is ink.
    """
    inks = (DARK,) if colour == PALE else (PAPER, ON_LIGHT)
    return max(inks, key=lambda words: contrast(words, colour))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2; text needs 4.5)."""
    dark, light = sorted(_luminance(each) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def clean(axes: Axes) -> None:
    """Remove the upper and right edge of the frame, and make the labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
