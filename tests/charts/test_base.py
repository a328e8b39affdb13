"""Pictures: light and dark pages, alt text, titles that fit."""

import base64
import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from cases import for_all
from matplotlib.image import imread

from course.charts import base
from course.charts.base import Picture


@pytest.fixture
def picture() -> Picture:
    picture = Picture(4, 2)
    axes = picture.panel()
    axes.bar(["a", "b"], [1, 2], color=base.BLUE)
    axes.set_title("time per step", loc="left")
    axes.set_xlabel("images per second")
    return picture


def test_a_notebook_gets_page_and_image(picture: Picture) -> None:
    bundle = picture._repr_mimebundle_()
    assert bundle["text/html"] == picture._repr_html_()
    assert base64.b64decode(bundle["image/png"]) == picture._repr_png_()
    (source,) = re.findall(r"base64,([^\"]+)\"", bundle["text/html"])
    assert source == bundle["image/png"].strip()
    assert 'alt="time per step; images per second"' in bundle["text/html"]
    described = Picture(2, 1, alt='a "ladder" & more')
    assert 'alt="a &quot;ladder&quot; &amp; more"' in described._repr_html_()


def test_a_dark_page_inverts_figures_but_not_photos(picture: Picture) -> None:
    assert 'class="course-picture"' in picture._repr_html_()
    picture.axes[0].imshow(np.zeros((2, 2)))
    assert 'class="course-picture"' not in picture._repr_html_()


def test_a_browser_shows_light_ink_on_a_dark_page(picture: Picture, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("no chromium here")
    page = tmp_path / "page.html"
    body = '<body data-jp-theme-light="{}" style="margin: 0">'
    corners = {}
    for light in ("true", "false"):
        page.write_text(body.format(light) + picture._repr_html_() + "</body>")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--screenshot={tmp_path / 'page.png'}", "--window-size=440,220"]
        home = f"--user-data-dir={tmp_path / 'home'}"
        subprocess.run([chromium, *options, home, page.as_uri()], check=True, timeout=120)
        corners[light] = imread(BytesIO((tmp_path / "page.png").read_bytes()))[2, 2, :3].mean()
    assert corners["true"] == 1 and corners["false"] < 0.1


def test_long_titles_are_wrapped() -> None:
    picture = Picture(6, 2)
    left, right = picture.panels(1, 2)
    long = "a title that is much too long for the panel below it, and for the picture, too"
    for axes in (left, right):
        axes.set_title(long, loc="left")
    picture._repr_png_()
    edges = []
    for axes in (left, right):
        title = axes.get_title("left")
        assert " ".join(title.split()) == long and "\n" in title
        (text,) = (t for t in axes.get_children() if getattr(t, "get_text", str)() == title)
        edges.append(text.get_window_extent().x1)
    assert edges[0] < right.get_window_extent().x0 and edges[1] <= picture.bbox.x1
    assert left.get_tightbbox().y1 <= picture.bbox.y1  # it has room for all its lines


@for_all("colour", [*base.PHASE_COLOURS.values(), base.GREY, base.ACCENT, base.UNDER_WHITE])
def test_words_on_a_colour_are_readable(colour: str) -> None:
    assert base.contrast(base.words_on(colour), colour) >= 4.5


def test_contrast_is_that_of_the_standard() -> None:
    assert base.contrast("#000000", "#ffffff") == base.contrast("#ffffff", "#000000") == 21
    assert base.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
