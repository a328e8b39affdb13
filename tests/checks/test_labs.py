"""Labs are found by their folders, and each has its files."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from job_helpers import prepared

from course.checks import discovery, exercises, quizzes, report, todo
from course.config import DEFAULTS, SCRIPTS, rung
from course.runs.run import PROJECT
from course.text import closest
from tools import lab_links, pages, record

# They take seconds to import, and every command that needs the list of labs would wait for them.
SLOW_IMPORTS = ("torch", "matplotlib", "jupyter_client")


def python(code: str, folder: Path) -> str:
    """Run code in a new process in this folder; return its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def find_problems() -> Iterator[str]:
    """Yield what exercises lack: each problem names a file, and what to do there."""
    scripts: dict[str, str] = {}
    for path in exercises.solutions():
        text, kind = path.read_text(), SCRIPTS[path.name]
        for seam in exercises.seams(text, path.name):
            name, place = (
                seam.name,
                f"solutions/{path.name}, line {seam.line}: exercise {seam.name!r}",
            )
            if name not in discovery.exercises():
                yield f"{place} is in no lab: add it to EXERCISES in labs/NAME/lab.py"
            elif scripts.setdefault(name, path.name) != path.name:
                yield f"{place} is in solutions/{scripts[name]}, too: rename one"
            elif name not in todo.all_hints():
                yield f"{place} has no hints: add a table [{name}] to its lab's hints.toml"
        for node in ast.walk(ast.parse(text)):
            is_setting = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cfg"
            if is_setting and not hasattr(kind, node.attr):
                place = f"solutions/{path.name}, line {node.lineno}: cfg.{node.attr}"
                fields = f"{closest(node.attr, DEFAULTS)}: add a field to {kind.__name__}"
                yield f"{place} is no setting{fields} in course/config/scripts.py"
    for lab in discovery.labs():
        for name in lab.exercises.keys() - scripts.keys():
            place = f"labs/{lab.name}/lab.py: exercise {name!r} has no seam"
            yield f"{place}: add '# >>> {name}: …' to a script in solutions/"


def test_exercises_have_all_their_parts() -> None:
    assert [*find_problems()] == []


SEAM = "    # >>> {}: a task\n    pass\n    # <<<\n"
LOSS = "loss = criterion(scores, labels)"
# Edits of a solution, and the problem that they make.
MISTAKES = {
    "a seam that no lab has": (
        ("train.py", LOSS, f"{LOSS}\n{SEAM.format('los')}"),
        "solutions/train.py, line .*: exercise 'los' is in no lab: add it to EXERCISES in labs/",
    ),
    "a name of a different script": (
        ("train_sharded.py", "def main(run):\n", f"def main(run):\n{SEAM.format('amp')}"),
        "solutions/train_sharded.py, line .*: exercise 'amp' is in solutions/train.py, too: ren",
    ),
    "a field that no script declares": (
        ("train.py", "cfg.label_smoothing", "cfg.label_smoothin"),
        r"train.py, line .*: cfg.label_smoothin is no setting \(did you mean 'label_smoothing'\?\):"
        " add a field to TrainConfig in course/config/scripts.py",
    ),
    "an exercise without a seam": (
        ("train.py", "# >>> grad_scaler:", "# >>> grad_scale:"),
        "labs/mixed_precision/lab.py: exercise 'grad_scaler' has no seam: add '# >>> grad_scaler: "
        "…' to a script in solutions/",
    ),
}


@pytest.mark.parametrize("edit, problem", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_an_exercise_is_named_with_its_file_and_fix(
    edit: tuple[str, str, str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, old, new = edit
    folder = shutil.copytree(exercises.SOLUTIONS, tmp_path / "solutions")
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    monkeypatch.setattr(exercises, "SOLUTIONS", folder)
    assert any(re.search(problem, found) for found in find_problems()), [*find_problems()]


def test_a_lab_without_hints_or_notebook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hints = {name: hint for name, hint in todo.all_hints().items() if name != "amp"}
    monkeypatch.setattr(todo, "all_hints", lambda: hints)
    words = r"has no hints: add a table \[amp\] to its lab's hints.toml"
    assert [bool(re.search(words, found)) for found in find_problems()] == [True]
    with pytest.raises(ValueError, match=words):
        todo.show_todo("amp")
    lab = replace(discovery.labs()[0], name="mine", notebook="mine")
    monkeypatch.setattr(discovery, "labs", lambda: (lab,))
    with pytest.raises(ValueError, match="labs/mine has no notebook: name it .*lab_mine.ipynb, or"):
        pages.labs_by_day()


def test_two_labs_cannot_have_one_exercise(monkeypatch: pytest.MonkeyPatch) -> None:
    labs = [lab for lab in discovery.labs() if "amp" in lab.exercises]
    monkeypatch.setattr(discovery, "labs", lambda: (*labs, replace(labs[0], name="mine")))
    words = "labs/mixed_precision/lab.py and labs/mine/lab.py both have an exercise 'amp': rename"
    with pytest.raises(ValueError, match=words):
        discovery.exercises.__wrapped__()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the files that a lab consists of, and import them instead of this project."""
    folders = (
        "course labs electives slurm_box trainspeed tools race solutions exercises notebooks docs "
    )
    folders += "benchmarks recordings"
    for name in folders.split():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=ignore)
    shutil.copy(PROJECT / "README.md", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return tmp_path


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
    assert "docs/glossary.md" in changed and "day1_4_mixed_precision" not in changed
    assert not any(re.search(r"day2_1_dataloader|[Ll]abs? 2\.1", text) for text in texts)
    assert any("[lab 7.3](day7_3_dataloader.ipynb)" in text for text in texts)
    lab, successor = (next((clone / "notebooks").glob(f"day{n}.ipynb")) for n in ("1_5_*", "2_2_*"))
    assert f"]({successor.name})" in lab.read_text().partition("## Next")[2]
    away.rename(home)
    python(update, clone)
    assert {path: path.read_bytes() for path in files} == before


def test_recordings_are_planned_by_purpose_then_lab() -> None:
    rungs = [planned.config.rung for planned in record.plan()]
    assert rungs.index("baseline") < rungs.index("compile") < rungs.index("trace-device")


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
    code = "import sys; from course.checks import discovery; discovery.labs()"
    code += "; assert 'pandas' not in sys.modules; import tools.record"
    assert python(f"{code}; print({{*{SLOW_IMPORTS}}} & {{*sys.modules}})", PROJECT) == "set()"
