"""`course update`: real clones, real commits upstream, and edits that must not be lost."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock

from course.checks import exercises
from course.runs import clone as clones
from course.runs.run import PROJECT
from tools import merge  # noqa: F401  which a process of another user cannot import
from tools import update as updating
from tools.update import update

SOLUTION = (PROJECT / "solutions" / "train.py").read_text()
NAMES = exercises.names(SOLUTION)
SCRIPT, NOTEBOOK = "exercises/train.py", "notebooks/day1.ipynb"
FILES = {
    "solutions/train.py": SOLUTION,
    SCRIPT: exercises.render(SOLUTION, ()),
    "exercises/train_sharded.py": "TODO offloading\n",
    "requirements.lock": "torch==1\n",
    ".gitignore": "/backups/\n/exercises/race.py\n",
}
TITLE = "run the forward pass under autocast in the config's precision"
FIXED_TITLE = "run the forward pass, not backward, under autocast"
OWN_TITLE = "in my own words"
COMMON = "    model.train()\n"


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, files: dict[str, str], subject: str = "A new version") -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "-qm", subject)


def notebook(*cells: str, kernel: str = "python3") -> str:
    """Return a notebook with code cells, ID: SOURCE; an executed one has an output."""
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": kernel, "display_name": kernel}}
    )
    for text in cells:
        name, _, source = text.partition(": ")
        cell = nbformat.v4.new_code_cell(source.removesuffix(" (executed)"), id=name)
        if source.endswith(" (executed)"):
            cell.outputs, cell.execution_count = [nbformat.v4.new_output("stream", text="1")], 1
        book.cells.append(cell)
    return json.dumps(book, indent=1) + "\n"


def cells_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [f"{cell.id}: {cell.source}" + " (executed)" * bool(cell.outputs) for cell in cells]


BOOK = notebook("setup: site = 1", "guess: predict(...)", "draw: plot()", "quiz: quiz()")
FILES[NOTEBOOK] = BOOK


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, FILES)
    return folder


@pytest.fixture
def upstream(history: Path, tmp_path: Path) -> Path:
    return shutil.copytree(history, tmp_path / "upstream")


@pytest.fixture
def clone(upstream: Path) -> Path:
    git(upstream, "clone", "-q", str(upstream), str(upstream.parent / "clone"))
    return upstream.parent / "clone"


def backup_of(clone: Path) -> Path:
    (backup,) = (clone / "backups").iterdir()
    return backup


def by_hand(solution: str = SOLUTION) -> str:
    """Return the exercise with all TODOs filled in as a learner would, below their comments."""
    return exercises.render(solution).replace(", solved: ", ": ")


def fix(text: str) -> str:
    """Change a comment of TODO amp, and the code that all have."""
    assert TITLE in text and COMMON in text
    return text.replace(TITLE, FIXED_TITLE).replace(COMMON, f"{COMMON}        fixed = True\n")


def fixed_files() -> dict[str, str]:
    solution = fix(SOLUTION)
    return {"solutions/train.py": solution, SCRIPT: exercises.render(solution, ())}


def test_files_that_cannot_be_merged_are_backed_up_and_replaced(
    upstream: Path, clone: Path
) -> None:
    edits = {
        NOTEBOOK: '{"cells": [{"id": "a"}], "metadata": {}}\n',
        "exercises/race.py": "my race\n",  # ignored here, and new upstream
        "notes.txt": "mine\n",  # untracked here, and new upstream
    }
    for name, text in edits.items():
        (clone / name).write_text(text)
    (clone / "exercises/train_sharded.py").write_text("another answer\n")  # not changed upstream
    git(clone, "add", NOTEBOOK)
    new = {name: f"new {name}\n" for name in ["exercises/race.py", "notes.txt"]}
    new |= {NOTEBOOK: notebook("setup: new"), "requirements.lock": "torch==2\n"}
    commit(upstream, new)
    done = update(clone)
    assert {name: (clone / name).read_text() for name in new} == new
    assert {name: (backup_of(clone) / name).read_text() for name in edits} == edits
    assert (clone / "exercises/train_sharded.py").read_text() == "another answer\n"
    assert git(clone, "status", "--porcelain").split() == ["M", "exercises/train_sharded.py"]
    assert (
        "\n  notes.txt was replaced by the new version\n" in done
        and f"are in {backup_of(clone)}\n" in done
    )
    assert (
        f"  {NOTEBOOK} was replaced, because yours could not be merged: it is not a notebook"
        in done
    )
    assert "make setup" in done and "4 files changed" in done
    assert "already up to date" in update(clone)


def test_a_fix_in_one_todo_keeps_its_lines_and_the_other_todos(upstream: Path, clone: Path) -> None:
    mine = by_hand()
    (clone / SCRIPT).write_text(mine)
    commit(upstream, fixed_files())
    assert f"  {SCRIPT} was merged\n" in update(clone)
    assert (clone / SCRIPT).read_text() == fix(mine)
    assert (backup_of(clone) / SCRIPT).read_text() == mine
    assert git(clone, "status", "--porcelain").split() == ["M", SCRIPT]
    assert "already up to date" in update(clone)


def test_where_both_changed_a_line_the_learners_stays(upstream: Path, clone: Path) -> None:
    mine = by_hand().replace(TITLE, OWN_TITLE)
    (clone / SCRIPT).write_text(mine)
    commit(upstream, fixed_files())
    done = update(clone)
    assert (clone / SCRIPT).read_text() == fix(by_hand()).replace(FIXED_TITLE, OWN_TITLE)
    new = f"backups/{backup_of(clone).name}/new/{SCRIPT}"
    assert (
        f"  {SCRIPT} was merged; yours stays in 1 place, TODO amp; the new version is {new}" in done
    )
    assert (clone / new).read_text() == fixed_files()[SCRIPT]


def test_edits_that_do_not_meet_are_merged_with_any_line_ends(upstream: Path, clone: Path) -> None:
    mine = FILES[SCRIPT].replace("    # TODO profiler", "    mine = 1\n    # TODO profiler")
    (clone / SCRIPT).write_bytes(mine.replace("\n", "\r\n").encode())
    (clone / SCRIPT).chmod(0o600)
    commit(upstream, fixed_files())
    assert f"  {SCRIPT} was merged\n" in update(clone)
    assert (clone / SCRIPT).read_text() == fix(mine)
    assert (clone / SCRIPT).stat().st_mode & 0o777 == 0o600
    assert not (backup_of(clone) / "new").exists()


def test_a_todo_that_was_given_gets_the_new_solution(upstream: Path, clone: Path) -> None:
    """Also if only the solution's lines changed, which the exercise does not show."""
    mine = exercises.render(SOLUTION, ["device", "amp"]).replace(
        COMMON, f"{COMMON}        mine = 1\n"
    )
    (clone / SCRIPT).write_text(mine)
    old, new = (
        "enabled=cfg.precision in HALF)",
        "enabled=cfg.precision in HALF, cache_enabled=True)",
    )
    commit(upstream, {"solutions/train.py": SOLUTION.replace(old, new)})
    assert f"  {SCRIPT} was merged\n" in update(clone)
    assert (clone / SCRIPT).read_text() == mine.replace(old, new)
    assert (backup_of(clone) / SCRIPT).read_text() == mine


def test_a_merge_that_does_not_compile_keeps_the_learners_script(
    upstream: Path, clone: Path
) -> None:
    loop = "    for epoch in range(checkpoints.first_epoch, cfg.epochs):\n"
    mine = FILES[SCRIPT].replace(loop, f"    if True:\n        pass\n{loop}")
    (clone / SCRIPT).write_text(mine)
    broken = FILES[SCRIPT].replace(COMMON, f"{COMMON}        return = 1\n")
    commit(upstream, {SCRIPT: broken})
    words = "was merged; yours stays in all lines, because in the merged script line "
    assert words in update(clone)
    assert (clone / SCRIPT).read_text() == mine
    assert (backup_of(clone) / "new" / SCRIPT).read_text() == broken


def test_notebooks_merge_by_cell(upstream: Path, clone: Path) -> None:
    mine = notebook(
        "setup: site = 2 (executed)",
        "scratch: mine (executed)",
        "guess: predict(3) (executed)",
        "draw: plot() (executed)",
        "quiz: quiz() (executed)",
        kernel="class",
    )
    (clone / NOTEBOOK).write_text(mine)
    new = (
        "setup: site = 1",
        "added: new",
        "guess: predict(..., unit)",
        "draw: plot(2)",
        "quiz: quiz()",
    )
    commit(upstream, {NOTEBOOK: notebook(*new)})
    done = update(clone)
    assert cells_of(clone / NOTEBOOK) == [
        "setup: site = 2 (executed)",
        "scratch: mine (executed)",
        "added: new",
        "guess: predict(3) (executed)",
        "draw: plot(2)",  # its output was that of the old one
        "quiz: quiz() (executed)",
    ]
    assert nbformat.read(clone / NOTEBOOK, 4).metadata.kernelspec.name == "class"
    assert (
        f"  {NOTEBOOK} was merged; yours stays in the cell `predict(3)`; the new version is" in done
    )
    assert "reload open notebooks" in done
    assert (backup_of(clone) / NOTEBOOK).read_text() == mine


@pytest.mark.parametrize(
    "mine, new, merged, kept",
    [
        (["a: 1", "b: 2"], ["a: 1", "c: 4", "d: 3"], ["a: 1", "d: 3"], "`3` (deleted);"),
        (["a: 1", "b: 9", "c: 3"], ["a: 1", "c: 4"], ["a: 1", "b: 9", "c: 4"], "`9`;"),
        (
            ["x: 0", "y: 0", "a: 1", "b: 2", "c: 3"],
            ["b: 2", "c: 4"],
            ["x: 0", "y: 0", "b: 2", "c: 4"],
            "",
        ),
        (["a: 1", "b: 5", "c: 3"], ["a: 1", "b: 5", "c: 3"], ["a: 1", "b: 5", "c: 3"], ""),
        (
            ["a: 1", "b: 5", "b: 6", "c: 3"],
            ["a: 1", "b: 2", "c: 4"],
            ["a: 1", "b: 5", "b-2: 6", "c: 4"],
            "",
        ),
    ],
    ids=["deleted", "deleted upstream", "own cells first", "the same edit", "one id twice"],
)
def test_cells_that_are_new_or_gone(
    upstream: Path, clone: Path, mine: list[str], new: list[str], merged: list[str], kept: str
) -> None:
    commit(upstream, {NOTEBOOK: notebook("a: 1", "b: 2", "c: 3")})
    update(clone)
    (clone / NOTEBOOK).write_text(notebook(*mine))
    commit(upstream, {NOTEBOOK: notebook(*new)})
    said = update(clone)
    assert cells_of(clone / NOTEBOOK) == merged
    assert ("yours stays in the cell" in said) == bool(kept) and kept in said


def test_a_notebook_that_was_only_executed_is_updated_in_silence(
    upstream: Path, clone: Path
) -> None:
    ran = [f"{cell} (executed)" for cell in cells_of(clone / NOTEBOOK)]
    (clone / NOTEBOOK).write_text(notebook(*ran, kernel="class"))
    commit(upstream, {NOTEBOOK: BOOK.replace("plot()", "plot(2)")})
    done = update(clone)
    assert f"{NOTEBOOK} is" not in done and f"are in {backup_of(clone)}" in done
    new = [cell.replace("plot() (executed)", "plot(2)") for cell in ran]
    assert cells_of(clone / NOTEBOOK) == new
    assert cells_of(backup_of(clone) / NOTEBOOK) == ran


def test_what_is_gone_upstream_stays_in_the_backup(upstream: Path, clone: Path) -> None:
    (clone / "exercises/train_sharded.py").write_text("my answer\n")
    (upstream / "exercises/train_sharded.py").unlink()
    commit(upstream, {})
    assert "  exercises/train_sharded.py was removed from the course\n" in update(clone)
    assert not (clone / "exercises/train_sharded.py").exists()
    assert (backup_of(clone) / "exercises/train_sharded.py").read_text() == "my answer\n"


def test_commits_of_ones_own_are_left_alone(upstream: Path, clone: Path) -> None:
    commit(clone, {SCRIPT: "my answer\n"})
    commit(upstream, {SCRIPT: "new\n"})
    with pytest.raises(ValueError, match="has 1 commits .*merge by hand: git merge origin/main"):
        update(clone)
    assert (clone / SCRIPT).read_text() == "my answer\n"


def test_an_upstream_that_was_rewritten_is_followed(upstream: Path, clone: Path) -> None:
    mine = by_hand()
    (clone / SCRIPT).write_text(mine)
    commit(upstream, fixed_files() | {"notes.txt": "a slip\n"})
    update(clone)
    (upstream / "notes.txt").write_text("corrected\n")
    git(upstream, "add", "--all")
    git(upstream, "commit", "-q", "--amend", "--no-edit")
    update(clone)
    assert (clone / "notes.txt").read_text() == "corrected\n"
    assert (clone / SCRIPT).read_text() == fix(mine)
    assert git(clone, "rev-parse", "HEAD") == git(upstream, "rev-parse", "HEAD")


def test_an_older_upstream_moves_no_one_back(upstream: Path, clone: Path) -> None:
    commit(upstream, fixed_files())
    update(clone)
    git(upstream, "branch", "newer")
    git(upstream, "reset", "-q", "--hard", "HEAD~1")  # such as an old copy of a class's bundle
    for _ in range(2):
        with pytest.raises(ValueError, match="origin/main is older than what you have, by 1 "):
            update(clone)
    assert (clone / SCRIPT).read_text() == git(upstream, "show", f"newer:{SCRIPT}")
    git(upstream, "reset", "-q", "--hard", "newer")
    assert "already up to date" in update(clone)


def test_a_shallow_clone_is_updated(upstream: Path, tmp_path: Path) -> None:
    commit(upstream, {"notes.txt": "second\n"})
    shallow = tmp_path / "shallow"
    git(upstream, "clone", "-q", "--depth=1", f"file://{upstream}", str(shallow))
    commit(upstream, {"notes.txt": "third\n"})
    update(shallow)
    assert (shallow / "notes.txt").read_text() == "third\n"


def test_a_head_that_is_detached_names_the_branch(clone: Path) -> None:
    git(clone, "checkout", "-q", "--detach")
    with pytest.raises(ValueError, match="git switch main"):
        update(clone)
    git(clone, "switch", "-q", "-c", "mine")
    with pytest.raises(ValueError, match="git branch --set-upstream-to=origin/main"):
        update(clone)


def interrupted_git(project: Path, *words: str, fix: str = "") -> str:
    if words[0] == "merge":
        raise KeyboardInterrupt
    return real_git(project, *words, fix=fix)


real_git = updating._git


@pytest.mark.parametrize("step", ["_git", "write_atomically"])
def test_an_interruption_puts_the_edits_back(
    step: str, upstream: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    edits = {SCRIPT: by_hand(), NOTEBOOK: notebook("setup: mine"), "notes.txt": "mine\n"}
    for name, text in edits.items():
        (clone / name).write_text(text)
    head = git(clone, "rev-parse", "HEAD")
    commit(upstream, fixed_files() | {NOTEBOOK: notebook("setup: new"), "notes.txt": "new\n"})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(updating, step, interrupted_git if step == "_git" else interrupted)
        update(clone)
    assert {name: (clone / name).read_text() for name in edits} == edits
    assert git(clone, "rev-parse", "HEAD") == head
    assert git(clone, "diff", "--cached", "--name-only") == ""
    update(clone)
    assert "fixed = True" in (clone / SCRIPT).read_text()


def test_an_update_that_was_killed_is_completed_by_the_next(upstream: Path, clone: Path) -> None:
    (clone / SCRIPT).write_text(by_hand())
    commit(upstream, fixed_files())
    git(clone, "fetch", "-q")
    edits = [*updating._edits(clone, "origin/main", {*fixed_files()})]
    updating._write(clone, "origin/main", edits, [])  # and no further
    update(clone)
    assert (clone / SCRIPT).read_text() == fix(by_hand())
    assert git(clone, "status", "--porcelain").split() == ["M", SCRIPT]


@pytest.mark.parametrize("has_moved", [False, True])
def test_the_backup_of_an_update_that_was_killed_is_named_by_the_next(
    has_moved: bool, upstream: Path, clone: Path
) -> None:
    (clone / "notes.txt").write_text("mine\n")
    commit(upstream, {"notes.txt": "new\n"})
    git(clone, "fetch", "-q")
    edits = [*updating._edits(clone, "origin/main", {"notes.txt"})]
    updating._back_up(clone, "origin/main", edits)
    updating._write(clone, "origin/main", edits, [])
    if has_moved:
        git(clone, "merge", "--ff-only", "origin/main")
    done = update(clone)
    (backup,) = (x.parent for x in clone.glob("backups/*/notes.txt") if x.read_text() == "mine\n")
    assert f"interrupted. Your versions before it are in {backup}" in done
    assert "interrupted" not in backup.name and "interrupted" not in update(clone)


def test_a_file_that_is_saved_during_the_update_is_not_replaced(
    upstream: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*words: object) -> Path:
        backup = back_up(*words)
        (clone / "notes.txt").write_text("mine, too\n")
        return backup

    back_up, mine = updating._back_up, by_hand()
    (clone / SCRIPT).write_text(mine)
    (clone / "notes.txt").write_text("mine\n")
    commit(upstream, fixed_files() | {"notes.txt": "new\n"})
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="notes.txt was saved"):
        patch.setattr(updating, "_back_up", save)
        update(clone)
    assert (clone / "notes.txt").read_text() == "mine, too\n"
    assert (clone / SCRIPT).read_text() == mine
    assert "interrupted" not in update(clone)


def test_two_updates_at_once_do_not_meet(upstream: Path, clone: Path) -> None:
    commit(upstream, fixed_files())
    other = FileLock(clone / ".git" / "course-update.lock")
    with other, pytest.raises(ValueError, match="another course update is running"):
        update(clone)
    assert "updated to" in update(clone)


def test_an_ignored_file_is_not_replaced_by_a_folder(upstream: Path, clone: Path) -> None:
    (clone / ".git/info/exclude").write_text("mine\n")
    (clone / "mine").write_text("mine\n")
    commit(upstream, {"mine/more/new.txt": "new\n"})
    with pytest.raises(ValueError, match="mine is a file here, and a folder upstream"):
        update(clone)
    assert (clone / "mine").read_text() == "mine\n"


@pytest.mark.parametrize(
    "name, text",
    [
        (SCRIPT, FILES[SCRIPT] + "x = " + "-" * 60_000 + "1\n"),
        (NOTEBOOK, '{"cells": ' + "[" * 100_000),
        (NOTEBOOK, json.dumps(json.loads(BOOK) | {"metadata": ["kernelspec"]})),
        (NOTEBOOK, BOOK.replace("plot()", "plot() # \\ud83d")),
    ],
    ids=["expression", "nested", "metadata", "surrogate"],
)
def test_a_file_that_breaks_a_parser_stops_no_update(
    name: str, text: str, upstream: Path, clone: Path
) -> None:
    (clone / name).write_text(text)
    commit(upstream, fixed_files() | {NOTEBOOK: notebook("setup: new")})
    assert f"  {name} was " in update(clone)
    assert (backup_of(clone) / name).read_text() == text


def test_another_git_process_leaves_the_edits_alone(upstream: Path, clone: Path) -> None:
    (clone / SCRIPT).write_text("my answer\n")
    commit(upstream, {SCRIPT: "new\n"})
    (clone / ".git" / "index.lock").touch()  # as another git process would
    with pytest.raises(ValueError, match="(?s)index.lock.*remove that file"):
        update(clone)
    assert (clone / SCRIPT).read_text() == "my answer\n"


def test_a_subject_cannot_control_the_terminal(upstream: Path, clone: Path) -> None:
    commit(upstream, {"notes.txt": "new\n"}, subject="Fix \x1b[31mred\x1b]0;title\x07 text")
    assert "Fix red text: 1 files" in update(clone)


def bundle(upstream: Path) -> Path:
    """Write the class's bundle as `course class init` does: beside, then renamed."""
    folder = upstream.parent / "shared"
    folder.mkdir(exist_ok=True)
    git(upstream, "bundle", "create", "-q", str(folder / "draft"), "HEAD", "main")
    return (folder / "draft").rename(folder / "course.bundle")


@pytest.fixture
def learner(upstream: Path) -> Path:
    """A clone of the class's bundle."""
    clone = upstream.parent / "learner"
    git(upstream, "clone", "-q", str(bundle(upstream)), str(clone))
    return clone


def test_a_clone_of_a_bundle_is_updated(upstream: Path, learner: Path) -> None:
    (learner / SCRIPT).write_text(by_hand().replace(TITLE, OWN_TITLE))
    commit(upstream, fixed_files())
    assert clones.look_for_update(learner)() == ""
    bundle(upstream)
    assert clones.look_for_update(learner)() == clones.WAITING
    assert "1 place, TODO amp" in update(learner)
    assert clones.look_for_update(learner)() == ""


def test_bundles_do_not_pile_up_in_a_clone(upstream: Path, learner: Path) -> None:
    """Each has the whole course: without gc, ten fixes would take ten times the space."""
    for number in range(updating.MOST_PACKS + 3):
        commit(upstream, {SCRIPT: f"# version {number}\n"})
        bundle(upstream)
        update(learner)
    assert len([*learner.glob(".git/objects/pack/*.pack")]) <= updating.MOST_PACKS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clones, "PATIENCE_S", 60)  # no test depends on speed


def test_an_update_is_waiting_after_a_fetch(upstream: Path, clone: Path, tmp_path: Path) -> None:
    assert clones.look_for_update(clone)() == clones.look_for_update(tmp_path)() == ""
    commit(upstream, {"notes.txt": "new\n"})
    git(clone, "fetch", "-q")
    assert clones.look_for_update(clone)() == clones.WAITING
    git(clone, "update-ref", "-d", "refs/remotes/origin/main")
    assert clones.look_for_update(clone)() == clones.WAITING
    git(clone, "checkout", "-q", "--detach")
    assert clones.look_for_update(clone)() == ""


def test_looking_for_an_update_uses_no_network_and_waits_for_no_disk(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def start(project: Path, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", "input()"] if words[0] == "ls-remote" else None
        process = (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if command
            else real(project, *words)
        )
        started.append((words[0], process))
        return process

    real = clones.start_git
    monkeypatch.setattr(clones, "start_git", start)
    monkeypatch.setattr(clones, "PATIENCE_S", 0.01)
    assert clones.look_for_update(clone)() == ""
    (hanging,) = [process for name, process in started if name == "ls-remote"]
    assert hanging.wait(60) == -9
    started.clear()
    git(clone, "remote", "set-url", "origin", "https://example.invalid/course.git")
    assert clones.look_for_update(clone)() == ""
    assert "ls-remote" not in {name for name, _ in started}
    monkeypatch.setenv("PATH", "")
    assert clones.look_for_update(clone)() == ""


def test_a_fetch_that_fails_names_the_cause(upstream: Path, learner: Path) -> None:
    commit(upstream, fixed_files())
    file = bundle(upstream)
    for part in (file.read_bytes()[:2000], file.read_bytes()[:40], b"no bundle"):
        file.write_bytes(part)
        with pytest.raises(ValueError, match="damaged or incomplete: try again"):
            update(learner)
    file.unlink()
    with pytest.raises(ValueError, match="course.bundle, where .* does not exist: is its disk"):
        update(learner)
    git(learner, "remote", "set-url", "origin", "http://127.0.0.1:1/course.git")
    with pytest.raises(ValueError, match=r"127\.0\.0\.1.*To fix it: check the network"):
        update(learner)
    git(learner, "remote", "set-url", "origin", "ssh://127.0.0.1:1/course.git")
    with pytest.raises(ValueError, match="To fix it: check the network"):
        update(learner)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
OTHER = 12345


def own(folder: Path, user: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Return the home of another user, mode 700, in folders that this user may enter."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    own(home, OTHER)
    closed = {folder: folder.stat().st_mode for folder in home.parents}
    for folder, mode in closed.items():
        folder.chmod(mode | 0o001)
    yield home
    for folder, mode in closed.items():
        folder.chmod(mode)


def as_other(home: Path, act: Callable[[], str]) -> str:
    """Return the result of a function, or its error, in a process of another user."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.chdir(home)
            os.environ["HOME"] = tempfile.tempdir = str(home)
            result = act()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


@needs_root
def test_a_bundle_of_another_user_is_cloned_and_updated(upstream: Path, home: Path) -> None:
    file, clone = bundle(upstream), home / "course"
    as_other(home, lambda: git(home, "clone", "-q", str(file), str(clone)))
    own(clone / SCRIPT, OTHER)
    (clone / SCRIPT).write_text(by_hand().replace(TITLE, OWN_TITLE))
    commit(upstream, fixed_files())
    file = bundle(upstream)
    assert as_other(home, clones.look_for_update(clone)) == ""  # root does not trust this clone
    assert as_other(home, lambda: clones.look_for_update(clone)()) == clones.WAITING
    assert "1 place, TODO amp" in as_other(home, lambda: update(clone))
    assert (clone / SCRIPT).stat().st_uid == OTHER
    file.chmod(0o600)
    words = f"ValueError: {file}, where the course comes from, cannot be read (Permission denied)"
    assert as_other(home, lambda: update(clone)).startswith(words)


@needs_root
def test_a_clone_of_another_user_is_refused_with_the_way_out(upstream: Path, clone: Path) -> None:
    own(upstream, OTHER)
    words = r"dubious ownership in \S+ at '\S+'\. To fix it: git refuses .*Ask its owner for a bund"
    with pytest.raises(ValueError, match=words):
        update(clone)
    own(clone, OTHER)
    with pytest.raises(
        ValueError, match=r"dubious .*\. To fix it: use a git clone that belongs to you"
    ):
        update(clone)
