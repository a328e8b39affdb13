"""Labs are found by their folders, and each has its files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from job_helpers import prepared

from course.checks import discovery, exercises, quizzes, report
from course.checks.lab import Recording
from course.config import rung
from course.runs.run import PROJECT
from tools import lab_links, record

# They take seconds to import, and every command that needs the list of labs would wait for them.
SLOW_IMPORTS = ("torch", "matplotlib", "jupyter_client")


def python(code: str, folder: Path) -> str:
    """Run code in a new process in this folder; return its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the files that a lab consists of, and import them instead of this project."""
    folders = "course labs tools race solutions exercises notebooks docs benchmarks recordings"
    for name in folders.split():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=ignore)
    shutil.copy(PROJECT / "README.md", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return tmp_path


def test_a_lab_is_added_by_copying_the_template(clone: Path, runs_root: Path) -> None:
    commands = (PROJECT / "CONTRIBUTING.md").read_text().split("## Add a lab")[1].split("```")[1]
    subprocess.run(["sh", "-e", "-c", commands.removeprefix("sh\n")], cwd=clone, check=True)
    book = nbformat.read(clone / "notebooks" / "lab_mine.ipynb", as_version=4)
    cells = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    code = (
        f"from course.checks import discovery; from tools import rehearsal, record\n{cells}\n"
        "print('mine' in {lab.name for lab in discovery.labs()}, lab.double(2),"
        "rehearsal.matching('lab_m*')[-1].name)"
    )
    assert python(code, clone) == "True 4 lab_mine.ipynb"


def test_every_lab_has_its_files() -> None:
    for lab in discovery.labs():
        book = nbformat.read(PROJECT / "notebooks" / f"{lab.notebook}.ipynb", as_version=4)
        assert f"bout {lab.minutes} minutes" in book.cells[0].source, lab.name
        assert quizzes.find(lab.name).questions
    notebooks = {path.stem for path in (PROJECT / "notebooks").glob("*.ipynb")}
    assert notebooks == {lab.notebook for lab in discovery.labs()}


def test_numbers_of_labs_are_rendered() -> None:
    assert lab_links.write(check=True) == [], "run: python -m tools.pages"
    assert [*lab_links.typed()] == [], "link the lab, so that the number follows if it moves"


def test_a_lab_moves_by_renaming_its_notebook(clone: Path) -> None:
    files = [*clone.glob("*.md"), *clone.glob("docs/*.md"), *clone.glob("notebooks/*.ipynb")]
    before = {path: path.read_bytes() for path in files}
    places = (clone / "notebooks" / f"day{place}_dataloader.ipynb" for place in ("2_1", "7_3"))
    home, away = places
    update = "from tools import lab_links; print(lab_links.write())"
    home.rename(away)
    changed = python(update, clone)
    texts = [path.read_text() for path in {*files, away} - {home}]
    assert "# Lab 7.3: the DataLoader and its workers" in away.read_text()
    assert "docs/glossary.md" in changed and "day1_3_mixed_precision" not in changed
    assert not any(re.search(r"day2_1_dataloader|[Ll]abs? 2\.1", text) for text in texts)
    assert any("[lab 7.3](day7_3_dataloader.ipynb)" in text for text in texts)
    away.rename(home)
    python(update, clone)
    assert {path: path.read_bytes() for path in files} == before


def test_recordings_are_planned_by_purpose_then_lab() -> None:
    rungs = [planned.config.rung for planned in record.plan()]
    assert rungs.index("baseline") < rungs.index("compile") < rungs.index("trace-device")
    with pytest.raises(ValueError, match="no purpose 'fun' of a recorded run: choose throughput, "):
        Recording("fun")


@pytest.mark.parametrize(
    "name", [name for name in discovery.exercises() if name != "distributed_validation"]
)
def test_a_report_lists_every_open_todo_that_its_run_needs(name: str, tmp_path: Path) -> None:
    check = discovery.exercises()[name]
    script = exercises.solution_of(name)
    text = (exercises.SOLUTIONS / script).read_text()
    config = rung(check.rung, quick=True, **check.settings | check.changes)
    filled = exercises.upto(name)
    for number, (view, still_open) in enumerate(((filled[:-1], True), (filled, False))):
        run = prepared(
            tmp_path / str(number),
            exercises.render(text, view),
            config,
            gpus=check.gpus,
            script=f"exercises/{script}",
        )
        assert (name in report.still_open(run)) == still_open


def test_labs_are_listed_without_slow_imports() -> None:
    code = "import sys; from course.checks import discovery; discovery.labs(); import tools.record"
    assert python(f"{code}; print({{*{SLOW_IMPORTS}}} & {{*sys.modules}})", PROJECT) == "set()"
