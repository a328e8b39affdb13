"""The process that trains small runs: its environment, and the progress that it reports."""

import sys

import psutil
import pytest
from check_helpers import TEXT

from course.checks import exercises
from course.checks.compare import Folder
from course.config import rung
from course.jobs.processes import loopback

pytestmark = pytest.mark.slow
# No image is needed before this error.
FAILS = exercises.render(TEXT, ["device"]).replace(
    "def main(run):\n", 'def main(run):\n    raise OSError("x")\n'
)


def test_a_terminal_shows_how_many_small_runs_have_ended(monkeypatch, capsys) -> None:
    folder = Folder()
    # Ranks on one machine need no name server, which may not answer.
    assert psutil.Process(folder._process.pid).environ()["GLOO_SOCKET_IFNAME"] == loopback()
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        for number in range(3):
            folder.add(f"{is_terminal}{number}", FAILS, rung("device", quick=True), 1)
        folder.work()
        shown = capsys.readouterr().out
        assert ("0/3 small runs" in shown, "3/3 small runs" in shown) == (is_terminal, is_terminal)
        assert bool(shown) == is_terminal
    folder.stop()
