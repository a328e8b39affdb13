"""The lab's functions with their checks, and the estimate."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from electives import choosing_gpu as lab

ENERGY, HOUR = "images_per_s / watts", "price / hours + watts / 1000 * kwh_price"
KILOWATTS = "watts / 1000 * kwh_price"
MILLION = "euros_per_hour / (images_per_s * 3600 / 1e6)"
WRONG = {
    ("watts / images_per_s", HOUR, MILLION): "these are joules per image",
    (ENERGY, "price / hours", MILLION): "the electricity is missing",
    (ENERGY, "watts / 1000 * kwh_price", MILLION): "the GPU's price is missing",
    (ENERGY, "price + watts / 1000 * kwh_price", MILLION): "the price counts in full in each hour",
    (ENERGY, "price / hours + watts * kwh_price", MILLION): "a kilowatt-hour has 1,000",
    (ENERGY, HOUR, "euros_per_hour"): "these are euros per hour",
    (ENERGY, HOUR, "euros_per_hour / (images_per_s * 3600)"): "these are euros per image",
    (ENERGY, HOUR, "1e6 * euros_per_hour / images_per_s"): "an hour has 3,600",
    (ENERGY, f"price / hours + {KILOWATTS} * hours", MILLION): "the electricity of all hours",
    (ENERGY, f"price / hours + {KILOWATTS} * 3600", MILLION): "watts × 1 hour, not × 3,600",
    (ENERGY, HOUR, MILLION.replace("/ (", "* hours / (")): "the hours count twice",
    (ENERGY, HOUR, MILLION.replace("/ (", "* (")): "divide instead",
    (ENERGY, HOUR, "images_per_s * 3600 / 1e6 / euros_per_hour"): "divide the other way round",
}


@pytest.fixture
def check(tmp_path: Path, runs_root: Path) -> Callable:
    """Return a function that checks the notebook's cell with its blanks filled by answers."""
    cell = cell_of("choosing_gpu", "cost")

    def checked(*answers: str) -> object:
        function = defined(filled(cell, *answers), "cost", tmp_path)
        return check_written("choosing_gpu.cost", function)

    return checked


def test_right_and_wrong_answers(check: Callable) -> None:
    assert check(ENERGY, HOUR, MILLION).passed
    other = (
        "(price / hours + 1e-3 * watts * kwh_price)",
        "1e6 / images_per_s * euros_per_hour / 3600",
    )
    assert check("1 / (watts / images_per_s)", *other).passed
    assert "a blank is left" in repr(check())
    for answers, words in WRONG.items():
        checked = check(*answers)
        assert checked.failed and re.search(words, repr(checked)), f"{answers}: {checked}"


def test_the_estimate_grows_with_bandwidth_and_is_drawn() -> None:
    table = lab.estimate_speeds()
    assert table["images_per_s"].is_monotonic_decreasing
    ratio = table["images_per_s"] / table["tb_per_s"]
    assert ratio.max() == pytest.approx(ratio.min())
    assert table["fp16_share"].between(0.03, 0.5).all()
    assert 1 < lab.recorded_speed("H200") / lab.recorded_speed("H100") < 4.8 / 3.35
    drawn = {text.get_text() for text in lab.plot_energy(table).axes[0].texts}
    assert drawn >= {*table.index}


@pytest.mark.parametrize(
    "needed, saved, break_even, words",
    [
        ("images / images_per_s / 3600", "rent - watts / 1e3 * kwh_price", "price / {}", ""),
        ("images / images_per_s", "rent - watts / 1e3 * kwh_price", "price / {}", "seconds"),
        ("images / images_per_s / 3600", "rent", "price / {}", "your own GPU needs electricity"),
        (
            "images / images_per_s / 3600",
            "rent + watts / 1e3 * kwh_price",
            "price / {}",
            "subtract",
        ),
    ],
)
def test_hours_to_buy(
    needed: str, saved: str, break_even: str, words: str, tmp_path: Path, runs_root: Path
) -> None:
    cell = cell_of("choosing_gpu", "hours_to_buy")
    text = filled(cell, needed, saved, break_even.format("saved_per_hour"))
    checked = check_written("choosing_gpu.hours_to_buy", defined(text, "hours_to_buy", tmp_path))
    assert checked.passed is not bool(words) and re.search(words, repr(checked))
