"""What pages show of recorded runs: written from them, and noticed when it is not so any more."""

import os
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from course import cli_labs, readme, waterfall
from course.plots.waterfall import waterfall as draw

PICTURE = next(place for place in readme.PLACES if isinstance(place, readme.Waterfall))


def test_the_pages_and_the_picture_are_those_of_the_recorded_runs() -> None:
    assert readme.write(check=True) == []


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the README as the only place that is written."""
    path = tmp_path / "README.md"
    path.write_text((readme.PROJECT / "README.md").read_text())
    block = readme.Block(path, "ladder", lambda: readme.table("nvidia-h100"))
    monkeypatch.setattr(readme, "PLACES", [block])
    return path


def test_a_typed_number_is_noticed_and_mended(page: Path) -> None:
    right = page.read_text()
    page.write_text(wrong := right.replace("| amp bf16 | 2", "| amp bf16 | 3"))
    with pytest.raises(ValueError, match="runs say any more: the ladder in README.md. Run"):
        cli_labs.readme(check=True)
    assert page.read_text() == wrong != right
    assert readme.write() == ["the ladder in README.md"]
    assert page.read_text() == right and readme.write(check=True) == []


def test_a_page_without_a_place_says_what_it_needs(page: Path) -> None:
    page.write_text("no place for it")
    with pytest.raises(ValueError, match="README.md needs the lines .*end of the ladder"):
        readme.write()


def test_a_picture_without_its_data_is_stale(tmp_path: Path) -> None:
    copy = readme.Waterfall(tmp_path / PICTURE.path.name, PICTURE.machine)
    assert not copy.write(check=True) and not copy.path.exists()
    with Image.open(PICTURE.path) as shown:
        shown.save(copy.path)  # the same pixels, and no word about where they are from
    assert not copy.write(check=True)
    copy.path.write_text("no picture")
    assert not copy.write(check=True)
    assert not copy.write() and copy.write(check=True)
    os.utime(copy.path, (0, 0))
    assert copy.write() and copy.path.stat().st_mtime == 0  # what is right is not drawn again


def test_a_pictures_word_changes_with_what_is_shown_and_no_more() -> None:
    table = pd.DataFrame({"machine": ["a GPU"], "images_per_s": [5684.474666275121]})
    word = readme.digest([table], "bars")
    assert word == readme.digest([table * 1], "bars") == readme.digest(
        [table.assign(images_per_s=5684.48)], "bars")  # fmt: skip
    others = [
        readme.digest([table.assign(images_per_s=5685.6)], "bars"),
        readme.digest([table.assign(machine="a GPU (recorded later)")], "bars"),
        readme.digest([table], "pies"),
    ]
    assert len({word, *others}) == 4


@pytest.fixture(scope="module")
def steps() -> pd.DataFrame:
    return waterfall.steps("nvidia-h100")


@pytest.fixture(scope="module")
def walls() -> pd.DataFrame:
    return waterfall.walls("nvidia-h100")


def words(axes) -> str:
    names = [label.get_text() for label in axes.get_xticklabels()]
    texts = [text.get_text() for text in axes.texts]
    return "\n".join([axes.get_title(loc="left"), *names, *texts])


def test_each_bar_stands_on_the_one_before_it(steps, walls) -> None:
    (axes,) = draw(steps, walls).axes
    below = 0.0
    bars = [bar for container in axes.containers for bar in container]
    for bar, speed in zip(bars, steps["images_per_s"], strict=True):
        assert bar.get_y() == pytest.approx(below)
        below = bar.get_y() + bar.get_height()
        assert below == pytest.approx(speed)


def test_the_picture_says_what_where_and_when(steps, walls) -> None:
    picture = draw(steps, walls)
    (axes,) = picture.axes
    said = words(axes)
    for word in (
        "device to compile: NVIDIA H100 80GB HBM3 (recorded 20", "baseline: Intel(R) Xeon",
        "fast step: NVIDIA H100 80GB HBM3 (benchmarks/fast_step/measured_h100.jsonl, PyTorch",
        "batch 256", "fast step\nfp16", "baseline\nfp32",
    ):  # fmt: skip
        assert word in said
    for row in steps.itertuples():
        assert f"{row.images_per_s:,.0f}" in said or f"{row.images_per_s:.1f}" in said
    for row in walls.itertuples():
        assert f"{row.wall}: {row.cost} an image" in said
    picture.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_rung_of_another_day_gets_a_line_of_its_own(steps, walls) -> None:
    mixed = steps.assign(machine=steps["machine"].mask(steps["rung"].eq("amp"), "another GPU"))
    said = words(draw(mixed, walls).axes[0])
    assert "device: NVIDIA" in said and "amp: another GPU" in said
    assert "channels_last to compile: NVIDIA" in said
