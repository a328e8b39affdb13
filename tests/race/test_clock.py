"""The race's clock stops at the judged weights, and a script cannot slow it down."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from job_helpers import SCRIPTS, nothing_left, prepared  # noqa: F401
from torch import nn

from course.data import crop_set
from course.data.crop_set import Crops
from course.runs.run import FOLDER_VARIABLE, Run
from course.training.recorder import recording
from race import referee, submission
from race.entries import Entry
from race.tracks import find_track


@pytest.fixture
def racing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Prepare a run of the race for recording."""
    settings = {"model": "resnet8_patches", "epochs": 3, "steps": 1, "batch_size": 64}
    run = prepared(tmp_path / "run", "", find_track("quick").config(settings, "clock", 1))
    request = json.loads((run.folder / "launch.json").read_text())
    (run.folder / "launch.json").write_text(json.dumps(request | submission.REQUEST))
    monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
    return run


def test_the_last_weights_take_the_time(racing: Run) -> None:
    """If a script saves after each epoch, the last save stops the clock."""
    net, began = nn.Linear(2, 2), time.perf_counter()
    with recording() as run:
        run.ready()
        for epoch in range(3):
            time.sleep(0.05)
            net.bias.data.fill_(epoch)
            run.save_weights(net)
        time.sleep(0.1)  # not counted
    assert torch.load(racing.folder / "weights.pt")["bias"][0] == 2
    assert 0.15 <= racing.record.extra["race"]["seconds"] <= time.perf_counter() - began - 0.1


# A script that takes a second and a half, and reports less.
LIGHT = (SCRIPTS / "race_light.py").read_text()
LIGHT = LIGHT.replace("    run.ready()", "    __import__('time').sleep(1.5)\n    run.ready()")
SLOW = "import time\nreal = time.perf_counter\ntime.perf_counter = lambda: real() / 10\n"


@pytest.mark.slow
def test_a_clock_that_a_script_slows_down_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real job, and a referee with few crops: the supervisor counts outside the script."""
    crops = Crops(crop_set.ensure(), "val").first(64)
    monkeypatch.setattr(submission, "judge", lambda runs, _: referee.write_verdict(*runs, crops))
    settings = submission.read_settings(LIGHT, "quick")
    entry = Entry.new("quick", "slower", "me", SLOW + LIGHT, settings, 1)
    failure = submission.run_all(SLOW + LIGHT, entry, [1]).failure
    assert "its clock counted" in failure
    reported, measured = map(float, re.findall(r"([\d.]+) s\b", failure))
    assert reported <= 0.5 and 1.5 < measured < 60, failure
