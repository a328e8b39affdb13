"""Pictures: light and dark pages, alt text, titles that fit."""

import base64
import re

import numpy as np
import pytest

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


@pytest.mark.parametrize("colour", [*base.PHASE_COLOURS.values(), base.GREY, base.ACCENT])
def test_words_on_a_colour_are_readable(colour: str) -> None:
    assert base.contrast(base.words_on(colour), colour) >= 4.5
