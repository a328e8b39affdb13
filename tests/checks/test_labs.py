"""A lab has one place: its entry. Whoever adds one touches nothing else."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from job_helpers import prepared

from course import days
from course.config import rung
from course.days.lab import Lab, Recording
from course.labs import checks, exercises, quizzes, report
from course.labs.progress import progress
from course.runs.run import PROJECT
from course.widgets.quiz import quiz
from course.workshop import record, rehearsal

# They take seconds to import, and each command of `course` that knows of labs would wait for them.
LARGE = ("torch", "matplotlib", "jupyter_client")
QUIZ = """title = "tiny"
[[questions]]
text = "Which?"
choices = [{text = "a", right = true, explanation = "a"},
           {text = "b", right = false, explanation = "b"},
           {text = "c", right = false, explanation = "c"}]
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab in a temporary folder: a notebook, an entry, the file of a quiz."""
    check = replace(days.checks()["day1.amp"], title="it is tiny")
    tiny = rung("device", rung="tiny", steps=9)
    recordings = (
        Recording("throughput", [tiny]),
        Recording("scaling", several=lambda gpus: [(tiny, count) for count in (1, gpus)]),
    )
    own = {"day9.tiny": check}
    lab = Lab(
        number="9.1",
        notebook="day9_1_tiny",
        title="a tiny lab",
        minutes=1,
        quiz="day9_1",
        checks=own,
        recordings=recordings,
    )
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "day9_1_tiny.ipynb")
    (tmp_path / "day9_1.toml").write_text(QUIZ)
    monkeypatch.setattr(days, "LABS", (*days.LABS, lab))
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path)
    monkeypatch.setattr(quizzes, "FOLDER", tmp_path)
    return lab


def test_a_new_lab_is_known_everywhere(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch, runs_root: Path
) -> None:
    assert rehearsal.matching("day9*") == [rehearsal.FOLDER / "day9_1_tiny.ipynb"]
    assert quiz("day9_1").title == "tiny"
    with pytest.raises(ValueError, match="no check 'day9': there are .*, day9.tiny"):
        checks.check("day9")
    monkeypatch.setattr(days, "LABS", (tiny,))  # the others' quizzes lie elsewhere
    found = progress()
    assert found.checks[["check", "state", "title"]].values.tolist() == [
        ["day9.tiny", "open", "it is tiny"]
    ]
    assert found.quizzes[["quiz", "questions"]].values.tolist() == [["day9_1", 1]]


def test_a_new_lab_is_recorded_too(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (own,) = tiny.recordings[0].configs
    assert record.plan("tiny") == [(own, 1, "throughput")]
    assert record.plan("tiny", gpus=4) == [(own, 1, "scaling"), (own, 4, "scaling")]
    rungs = [planned.config.rung for planned in record.plan()]
    last, next_purpose = rungs.index("compile"), rungs.index("trace-device")
    assert last < rungs.index("tiny") < next_purpose  # after those of the labs before it
    monkeypatch.setattr(days, "LABS", (tiny,))
    assert record.plan() == [(own, 1, "throughput")]
    with pytest.raises(ValueError, match="no purpose 'fun' of a recorded run: choose throughput, "):
        Recording("fun", [own])


def test_every_lab_has_its_files() -> None:
    for lab in days.LABS:
        book = nbformat.read(PROJECT / "notebooks" / f"{lab.notebook}.ipynb", as_version=4)
        assert f"bout {lab.minutes} minutes" in book.cells[0].source, lab.notebook
        assert lab.title in book.cells[0].source.splitlines()[0], lab.notebook
        assert quiz(lab.quiz).questions
    of_labs = {f"{lab.notebook}.ipynb" for lab in days.LABS}
    assert of_labs == {path.name for path in (PROJECT / "notebooks").glob("*.ipynb")}
    assert {lab.quiz for lab in days.LABS} == {path.stem for path in quizzes.FOLDER.iterdir()}


@pytest.mark.parametrize("name", [name for name in days.checks() if name != "day2.once"])
def test_a_report_knows_every_todo_that_its_run_needed(name: str, tmp_path: Path) -> None:
    check = days.checks()[name]
    script = exercises.solution_of(check.todo)
    text = (exercises.SOLUTIONS / script).read_text()
    config = rung(check.rung, quick=True, **check.settings | check.changes)
    for solved, still_open in ((check.todo - 1, True), (check.todo, False)):
        run = prepared(
            tmp_path / str(solved),
            exercises.render(text, solved),
            config,
            gpus=check.gpus,
            script=f"exercises/{script}",
        )
        assert (check.todo in report.still_open(run)) == still_open


def test_what_the_labs_are_is_known_at_once() -> None:
    named = "import sys, course.days, course.workshop.record"
    code = f"{named}; print({{*{LARGE}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT)
    assert done.stdout.strip() == "set()", done.stderr
