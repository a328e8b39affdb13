"""The race's clock: it stops at the weights that are judged, and no script slows it down."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from job_helpers import SCRIPTS, nothing_left, prepared  # noqa: F401
from torch import nn

from course.runs.run import FOLDER_VARIABLE, Run
from course.training.recorder import recording
from race import entry, tracks
from race.board import Entry


@pytest.fixture
def racing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a race that is ready to be recorded."""
    settings = {"model": "resnet8_patches", "epochs": 3, "steps": 1, "batch_size": 64}
    made = prepared(tmp_path / "run", "", tracks.get("quick").config(settings, "clock", 1))
    asked = json.loads((made.folder / "launch.json").read_text())
    (made.folder / "launch.json").write_text(json.dumps(asked | {"race": {"track": "quick"}}))
    monkeypatch.setenv(FOLDER_VARIABLE, str(made.folder))
    return made


def test_the_last_weights_take_the_time(racing: Run) -> None:
    """Whoever saves after each epoch is timed to the epoch whose weights are judged."""
    net = nn.Linear(2, 2)
    with recording() as run:
        run.ready()
        for epoch in range(3):
            time.sleep(0.05)
            net.bias.data.fill_(epoch)
            run.save_weights(net)
        time.sleep(0.1)  # which comes after it
    assert torch.load(racing.folder / "weights.pt")["bias"][0] == 2
    assert 0.15 <= racing.record.race["seconds"] <= racing.record.wall_s - 0.1


def test_without_weights_the_time_is_that_of_the_run(racing: Run) -> None:
    with recording() as run:
        run.ready()
        time.sleep(0.05)
    assert racing.record.race["seconds"] >= 0.05


# A script that takes a second and a half, and ways to report less.
LIGHT = (SCRIPTS / "race_light.py").read_text()
LIGHT = LIGHT.replace("    run.ready()", "    __import__('time').sleep(1.5)\n    run.ready()")
SLOW = "import time\nreal = time.perf_counter\ntime.perf_counter = lambda: real() / 10\n"
SMALLER = """
        run._watch._marks["seconds"] = 0.5
"""
CLOCKS = {"slower": SLOW + LIGHT, "smaller": LIGHT + SMALLER}  # honest ones: test_entering.py


@pytest.mark.slow
def test_a_clock_that_a_script_slows_down_is_refused() -> None:
    """Real jobs and the real referee: the supervisor counts outside the script's process."""
    settings = entry.settings_of(LIGHT, "quick")
    for way, text in CLOCKS.items():
        made = entry.run_all(text, Entry.new("quick", way, "me", text, settings, 1), [1])
        assert "its own clock counted" in made.failure, way
        own, seen = map(float, re.findall(r"([\d.]+) s\b", made.failure))
        assert own <= 0.5 and 1.5 < seen < 60, made.failure
