"""What all pictures share: both themes, words for who does not see, nothing cut."""

import base64
import io
import re

import numpy as np
import pytest
from cases import for_all
from matplotlib.colors import to_hex
from matplotlib.image import imread

from course.charts import base
from course.charts.base import Picture
from course.text import ON_PAPER


@pytest.fixture
def picture() -> Picture:
    made = Picture(4, 2)
    axes = made.add_subplot()
    axes.bar(["a", "b"], [1, 2], yerr=[0.1, 0.2], color="#0072B2", ecolor="#333333")
    axes.text(0, 0.5, "inside", color="white")
    axes.set_title("what is seen", loc="left")
    axes.set_xlabel("images per second")
    return made


def shown(picture: Picture) -> list[np.ndarray]:
    """The two images of its page: height × width × RGBA, from 0 to 1."""
    found = re.findall(r"base64,([^\"]+)\"", picture._repr_html_())
    return [imread(io.BytesIO(base64.b64decode(each))) for each in found]


def pixels(image: np.ndarray, grey: float, *others: float) -> int:
    """How many pixels have this colour: one number for a grey, three for another."""
    colour = (grey, *others) if others else (grey,) * 3
    near = np.abs(image[..., :3] - colour).max(axis=-1) < 0.01
    return int((near & (image[..., 3] > 0.9)).sum())


def test_ink_is_dark_on_light_and_light_on_dark(picture: Picture) -> None:
    light, dark = shown(picture)
    ink, light_ink, blue = 0.0, 0.847, (0, 0.447, 0.698)
    assert pixels(light, ink) > 100 and pixels(dark, ink) == 0
    assert pixels(dark, light_ink) > 100 > pixels(light, light_ink)
    # What carries a meaning keeps its colour, and white words stand on it.
    assert pixels(light, *blue) == pytest.approx(pixels(dark, *blue), rel=0.02)
    assert 0 < pixels(dark, 1.0) < 500
    assert light[0, 0, 3] == 1 and dark[0, 0, 3] == 0  # no white slab


def test_on_paper_there_is_the_light_one_alone(
    picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    light, _ = shown(picture)
    monkeypatch.setenv(ON_PAPER, "1")
    (alone,) = shown(picture)
    assert (alone == light).all()


def test_showing_it_changes_nothing(picture: Picture) -> None:
    before = picture._repr_png_()
    picture._repr_html_()
    assert picture._repr_png_() == before


def test_it_says_what_is_to_be_seen(picture: Picture) -> None:
    assert 'alt="what is seen; images per second"' in picture._repr_html_()
    told = Picture(2, 1, alt='a "ladder" & more')
    assert 'alt="a &quot;ladder&quot; &amp; more"' in told._repr_html_()


def test_long_titles_are_broken_before_they_are_cut() -> None:
    made = Picture(6, 2)
    left, right = made.subplots(1, 2)
    long = "a title that is much too long for the panel under it, and for the picture, too"
    for axes in (left, right):
        axes.set_title(long, loc="left")
    made._repr_png_()
    for axes in (left, right):
        assert " ".join(axes.get_title("left").split()) == long
        assert "\n" in axes.get_title("left")
    edges = [
        child.get_window_extent().x1
        for axes in (left, right)
        for child in axes.get_children()
        if getattr(child, "get_text", str)() == axes.get_title("left")
    ]
    assert edges[0] < right.get_window_extent().x0 and edges[1] <= made.bbox.x1
    assert left.get_tightbbox().y1 <= made.bbox.y1  # it has room for all its lines


@for_all("colour", [*base.PHASE_COLOURS.values(), base.GREY, base.ACCENT, base.UNDER_WHITE])
def test_words_on_a_colour_can_be_read_in_both_themes(colour: str) -> None:
    words = base.words_on(colour)
    assert base.contrast(words, colour) >= 4.5
    made = Picture(2, 1)
    text = made.add_subplot().text(0.5, 0.5, "words", color=words)
    with made._in_the_dark():
        assert to_hex(text.get_color()) == words  # no ink, which would turn pale there


def test_words_on_a_pale_colour_are_ink() -> None:
    assert base.words_on(base.PALE) in base.INK


def test_contrast_is_that_of_the_standard() -> None:
    assert base.contrast("#000000", "#ffffff") == base.contrast("#ffffff", "#000000") == 21
    assert base.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def test_a_notebook_gets_page_and_image(picture: Picture) -> None:
    bundle = picture._repr_mimebundle_()
    assert bundle["text/html"] == picture._repr_html_()
    assert base64.b64decode(bundle["image/png"]) == picture._repr_png_()
