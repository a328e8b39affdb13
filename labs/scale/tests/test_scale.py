"""Published training runs and GPUs with their figures, and the lab's function with its check."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from labs import scale as lab
from labs.scale.full_training import estimate_runs, full_training, one_gpu, several_gpus
from labs.scale.published import IMAGENET_IMAGES
from labs.start_here.tests.test_supercomputer import assert_words_fit

HOURS, GPU_HOURS = "90 * 1_281_167 / images_per_s / 3600", "gpus * hours"
KWH = "gpu_hours * watts / 1000"
RIGHT = [
    (HOURS, GPU_HOURS, KWH),
    ("90 * 1281167 / (images_per_s * 60 * 60)", "hours * gpus", "watts * gpus / 1e3 * hours"),
]
WRONG = {
    ("90 * 1_281_167 / images_per_s", GPU_HOURS, KWH): "these are seconds",
    ("1_281_167 / images_per_s / 3600", GPU_HOURS, KWH): "this is one epoch: the training has 90",
    (HOURS.replace("/ 3600", "// 3600"), GPU_HOURS, KWH): "keep the fraction of an hour",
    (f"{HOURS} / gpus", GPU_HOURS, KWH): "4 GPUs: .*all GPUs together, so do not divide by gpus",
    (HOURS, "hours", KWH): "gpu_hours at .* 4 GPUs: .*each of the GPUs is used for all",
    (HOURS, "hours / gpus", KWH): "multiply the hours by the number of GPUs, do not divide",
    (HOURS, GPU_HOURS, "hours * watts / 1000"): "this is the energy of one GPU",
    (HOURS, GPU_HOURS, "gpus * gpu_hours * watts / 1000"): "the number of GPUs counts twice",
    (HOURS, GPU_HOURS, "gpu_hours * watts"): "these are watt-hours",
    (HOURS, GPU_HOURS, "3600 * gpu_hours * watts"): "these are joules",
    (HOURS, GPU_HOURS, "watts"): "check its units",
}


@pytest.fixture
def check(tmp_path: Path, runs_root: Path) -> Callable:
    """Return a function that checks the notebook's cell with its blanks filled by answers."""
    cell = cell_of("scale", "full_training")

    def checked(*answers: str) -> object:
        function = defined(filled(cell, *answers), "full_training", tmp_path)
        return check_written("scale.full_training", function)

    return checked


def test_right_answers_pass_and_an_untouched_cell_does_not(check: Callable) -> None:
    assert all(check(*answers).passed for answers in RIGHT)
    untouched = check()
    assert "a blank is left" in repr(untouched)
    assert untouched.function is full_training


def test_wrong_answers_hear_what_is_wrong(check: Callable) -> None:
    for answers, words in WRONG.items():
        checked = check(*answers)
        assert checked.failed and re.search(words, repr(checked)), f"{answers}: {checked}"


def test_published_numbers_are_calculated_and_drawn() -> None:
    table = lab.training_times()
    by_team = table.set_index("team")
    assert by_team.loc["Facebook (one node)", "device_hours"] == 8 * 29
    # 90 epochs of 1,281,167 images in 14 days on one GPU.
    assert table["images_per_s_per_device"][0] == pytest.approx(95.3, abs=0.1)
    assert lab.power().set_index("device")["performance_per_kw"].idxmax() == "A100 PCIe"
    for picture in (lab.plot_training_times(table), lab.plot_power(lab.power())):
        assert_words_fit(picture)
        assert "?" in [text.get_text().strip() for axes in picture.axes for text in axes.texts]


def test_costs_of_recorded_runs() -> None:
    runs = pd.DataFrame(
        {
            "rung": ["a", "b"],
            "gpus": [1, 4],
            "images_per_s": [IMAGENET_IMAGES / 3600] * 2,  # an epoch per hour
            "watts": [None, 512.5],
        }
    )
    table = estimate_runs(runs, full_training)
    assert table["hours"].tolist() == pytest.approx([90] * 2)
    assert table["gpu_hours"].tolist() == pytest.approx([90, 360])
    assert table["kwh"].tolist() == pytest.approx([float("nan"), 360 * 0.5125], nan_ok=True)
    networks = several_gpus()[["gpus", "network"]].values.tolist()
    assert networks == [[1, "–"], [2, "NVLink"], [4, "NVLink"], [4, "sockets"]]
    assert len(one_gpu()) == 5
