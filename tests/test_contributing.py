"""CONTRIBUTING.md's section on adding a lab, executed under a different name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.runs.run import PROJECT

PAGE_NAME, NAME = "z_loss", "my_loss"
SECTION = (PROJECT / "CONTRIBUTING.md").read_text().split("\n## Add a lab\n")[1].split("\n## ")[0]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Above a block: which file it is, or where in a file its lines go.
PLACE = re.compile(
    r"(?:In|Write) `([^`]+)`(?:, (?:also )?(below|before|replace) `([^`]+)`)?[^`]*:\s*$"
)
# Trains the solution once, and checks it, a wrong answer and the untouched script with this run.
CHECKS = f"""
from course import check, rung, show_todo
from course.checks import exercises
from course.checks.compare import Folder
from course.runs.run import Run
from tools import pages

assert pages.write(check=True, only_labs=True) == []
print(show_todo({NAME!r}))
solution = exercises.render((exercises.SOLUTIONS / "train.py").read_text())
wrong = solution.replace(".square()", "")
folder = Folder()
sizes = dict(model="resnet18", data="imagenet", image_px=32, batch_size=4, steps=5,
             warmup_steps=4, val_steps=1, device="cpu")
run = folder.add("mine", solution, rung("device", **sizes, {NAME}=0.1), 1)
folder.work()
for text in (solution, wrong, exercises.read("exercises/train.py")):
    run.script.write_text(text)
    print(check({NAME!r}, Run(run.folder), against=run))
folder.stop()
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the project's files into a new repository, and import them instead of this project."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    folder = tmp_path / "clone"
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    author = ["-c", "user.name=Me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *author, "commit", "--quiet", "-m", "x"], cwd=folder, check=True)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{PROJECT / 'tests' / 'start'}")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return folder


def execute(command: str, folder: Path, *, fails: bool = False) -> str:
    """Run a shell's commands until one fails; return what they print."""
    done = subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True)
    assert bool(done.returncode) == fails, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def apply(where: str, kind: str | None, anchor: str, block: str, folder: Path) -> None:
    """Write a block into a file of which one line is the anchor; without one, as the file."""
    path = folder / where
    if path.suffix == ".ipynb":
        book = nbformat.read(path, as_version=4)
        (at,) = [at for at, cell in enumerate(book.cells) if cell.source == anchor]
        assert kind == "before"
        book.cells.insert(at, nbformat.v4.new_code_cell(block.rstrip("\n")))
        path.write_text(nbformat.writes(book, indent=1) + "\n")
    elif kind:
        lines = path.read_text().splitlines(keepends=True)
        (at,) = [at for at, line in enumerate(lines) if line.strip() == anchor]
        lines[at : at + 1] = [*[lines[at]] * (kind == "below"), block]
        path.write_text("".join(lines))
    else:
        path.write_text(block)


def follow(folder: Path) -> dict[str, str]:
    """Do what the section says under a different name; return what its commands print."""
    section, end, place, printed = SECTION.replace(PAGE_NAME, NAME), 0, None, {}
    for match in BLOCK.finditer(section):
        language, block = match.groups()
        text, end = section[end : match.start()], match.end()
        if language == "sh":
            printed[block] = execute(block, folder)
            continue
        place = PLACE.search(text) or (place if not text.strip() else None)
        assert place, f"where does this block go?\n{block}"
        apply(place[1], place[2], place[3] or "", block, folder)
    return printed


@pytest.mark.slow
def test_the_page_adds_a_lab_with_an_exercise_and_a_setting(clone: Path, runs_root: Path) -> None:
    *_, tested = follow(clone).values()
    assert "exercises/ is what solutions/ generates" in tested and " passed" in tested
    changed = execute("git diff --cached --name-only HEAD", clone).splitlines()
    outside = {name for name in changed if not name.startswith(f"labs/{NAME}/")}
    by_hand = {f"notebooks/lab_{NAME}.ipynb", "solutions/train.py", "course/config/scripts.py"}
    generated = {"README.md", "docs/instructors.md", "exercises/train.py"}
    assert outside == by_hand | generated
    execute(f"ruff check . && ruff format --check labs/{NAME} solutions course/config", clone)

    launch = "course run solutions/{}.py --set {}=0.1 --dry-run"
    assert "train.py" in execute(launch.format("train", NAME), clone)
    refused = execute(launch.format("train_parallel", NAME), clone, fails=True)
    assert f"train_parallel.py has no setting '{NAME}'; train.py has it" in refused

    script = clone / "checks.py"
    script.write_text(CHECKS)
    shown, right, wrong, untouched = execute("python checks.py", clone).split(f"\n{NAME}: large")
    assert f"# TODO {NAME}: add the mean" in shown and "Hints:" in shown
    assert "meter.lap" not in shown  # the line after the seam
    assert right.count("passed") == 2 and "does not measure speed" in right
    assert "correct   failed" in wrong and f"with cfg.{NAME}=0.1, step 0: loss" in wrong
    assert f"TODO {NAME} is still open in exercises/train.py" in untouched
