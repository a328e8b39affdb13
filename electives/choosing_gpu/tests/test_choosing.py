"""The lab's function with its check, the estimate, and costs with a learner's prices."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from electives import choosing_gpu as lab
from electives.choosing_gpu.costs import cost

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
    tested = lab.compare_estimate()
    assert 1 < tested["recorded speed"] < tested["bandwidth"]
    drawn = {text.get_text() for text in lab.plot_energy(table).axes[0].texts}
    assert drawn >= {*table.index}


def test_costs_with_prices() -> None:
    untouched = lab.compare_costs({"L4": ..., "H100": ...}, 20_000, 0.25, cost)
    assert "Replace the dots" in untouched
    table = lab.compare_costs({"L4": 2500, "H100": 25_000, "A100": ...}, 20_000, 0.25, cost)
    assert sorted(table.index) == ["H100", "L4"]
    assert table["euros_per_million"].is_monotonic_increasing
    with pytest.raises(ValueError, match="unknown: RTX 9999. Choose from .*H100"):
        lab.compare_costs({"RTX 9999": 1}, 1, 0.25, cost)
    shares = table["electricity_share"] * table["euros_per_million"]
    assert shares["L4"] == pytest.approx(cost(table.images_per_s["L4"], 72, 1e-9, 1, 0.25)[1])
    rented = lab.compare_costs({"L4": 0.5}, 1, 0, cost)
    assert rented["electricity_share"].item() == 0
    with pytest.raises(ValueError, match="hours: 0. Prices and hours must be above 0"):
        lab.compare_costs({"L4": 2500}, 0, 0.25, cost)
