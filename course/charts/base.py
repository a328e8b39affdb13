"""`Picture`, a figure for light and dark pages, and colours."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from course.text import wrap_text

if TYPE_CHECKING:
    from ipywidgets import Widget

MARGIN = 6  # pixels between a title and the next panel
SHORTEST_LINE = 12  # characters of a title that is wrapped
# Okabe and Ito's colours, which colour-blind people can distinguish.
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
ON_LIGHT = "#101010"  # text on a light colour
PALE = GREY + "40"  # missing values

# In its dark theme, JupyterLab sets an attribute of the page's body, VS Code a class. There, dark
# and light are exchanged, and hues stay. An untrusted notebook ignores the style.
DARK_FILTER = "filter: invert(0.94) hue-rotate(180deg) saturate(1.5) brightness(1.15)"
STYLE = f"""<style>
body[data-jp-theme-light="false"] .course-picture, body.vscode-dark .course-picture {{
  {DARK_FILTER} }}
</style>"""


class Picture(Figure):
    """A figure that a notebook displays in its light and its dark theme.

    Args:
        alt: text for screen readers; by default each panel's title, axes, and the values that
            primitives have drawn in it.
    """

    def __init__(self, width: float, height: float, alt: str = "") -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        self._alt = alt
        self.values: dict[Axes, list[str]] = {}  # by panel, for the alt text

    def panel(self) -> Axes:
        """Add the figure's only panel."""
        return self.panels()[0]

    def panels(self, rows: int = 1, columns: int = 1, **settings: Any) -> list[Axes]:
        """Add panels without a frame, row by row; see `Figure.subplots` for settings."""
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
        text = "; ".join(" ".join(phrase.split()) for phrase in words if phrase)
        return re.sub(r"[${}]", "", text)  # from formulas

    def _lay_out(self) -> None:
        """Lay out once, and wrap titles that would run into the next panel."""
        if (engine := self.get_layout_engine()) is None:
            return
        engine.execute(self)
        if any([self._fit_titles(axes) for axes in self.axes]):
            engine.execute(self)
        # Without an engine, drawing does not lay out again.
        with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
            self.set_layout_engine(None)

    def _fit_titles(self, axes: Axes) -> bool:
        """Wrap titles that are wider than their panel; return whether there was one."""
        box = axes.get_window_extent()
        panels = [panel.get_window_extent() for panel in self.axes]
        next_panels = [p.x0 for p in panels if p.x0 > box.x0 + 1 and abs(p.y1 - box.y1) < 20]
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
        png = self._repr_png_()
        image = base64.b64encode(png).decode()
        return {"text/html": self._page(image), "image/png": image, "text/plain": repr(self)}

    def _repr_png_(self) -> bytes:
        self._lay_out()
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        return self._page(base64.b64encode(self._repr_png_()).decode())

    def _page(self, image: str) -> str:
        has_photos = any(axes.images for axes in self.axes)  # photos are not inverted
        name = "" if has_photos else ' class="course-picture"'
        alt = html.escape(self.alt or "a figure", quote=True)
        source = f"data:image/png;base64,{image}"
        return f'{STYLE}<img{name} alt="{alt}" style="max-width: 100%" src="{source}">'


def words_on(colour: str) -> str:
    """Return the text colour, white or dark, that is most readable on a colour."""
    inks = (DARK,) if colour == PALE else ("#ffffff", ON_LIGHT)
    return max(inks, key=lambda ink: contrast(ink, colour))


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2; text needs 4.5)."""
    dark, light = sorted(_luminance(colour) for colour in (a, b))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def clean(axes: Axes) -> None:
    """Remove the upper and right edge of the frame, and make the labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def widget_view(widget: Widget) -> dict[str, Any]:
    """Return the entry of a MIME bundle that shows a widget; empty without a kernel.

    ipywidgets 7, which notebook services may have, gives its widgets no method that returns one.
    """
    if widget.model_id is None:
        return {}
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}
