"""`course update`: a real clone, a real commit upstream, and edits that must not be lost."""

import subprocess
from pathlib import Path

import pytest

from tools.update import update

FILES = {
    "exercises/train.py": "TODO device\n",
    "exercises/train_sharded.py": "TODO offloading\n",
    "notebooks/day1.ipynb": "{}\n",
    "requirements.lock": "torch==1\n",
    ".gitignore": "/backups/\n/exercises/race.py\n",
}


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "-qm", "A new version")


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, FILES)
    return folder


@pytest.fixture
def clone(upstream: Path) -> Path:
    git(upstream, "clone", "-q", str(upstream), str(upstream.parent / "clone"))
    return upstream.parent / "clone"


def test_edits_are_backed_up_and_new_files_taken(upstream: Path, clone: Path) -> None:
    edits = {
        "exercises/train.py": "my answer\n",
        "notebooks/day1.ipynb": '{"outputs": 1}\n',
        "exercises/race.py": "my race\n",  # ignored here, and new upstream
        "notes.txt": "mine\n",  # untracked here, and new upstream
    }
    for name, text in edits.items():
        (clone / name).write_text(text)
    (clone / "exercises/train_sharded.py").write_text("another answer\n")  # not changed upstream
    git(clone, "add", "exercises/train.py")
    new = {name: f"new {name}\n" for name in [*edits, "requirements.lock"]}
    commit(upstream, new)
    done = update(clone)
    assert {name: (clone / name).read_text() for name in new} == new
    (backup,) = (clone / "backups").iterdir()
    assert {name: (backup / name).read_text() for name in edits} == edits
    assert (clone / "exercises/train_sharded.py").read_text() == "another answer\n"
    assert git(clone, "status", "--porcelain").split() == ["M", "exercises/train_sharded.py"]
    for name in edits:
        assert f"{name} is new; your version is {backup / name}" in done
    assert "make setup" in done and "5 files changed" in done
    assert "already up to date" in update(clone)


def test_commits_of_ones_own_are_left_alone(upstream: Path, clone: Path) -> None:
    commit(clone, {"exercises/train.py": "my answer\n"})
    commit(upstream, {"exercises/train.py": "new\n"})
    with pytest.raises(ValueError, match="has 1 commits .*merge by hand: git merge origin/main"):
        update(clone)
    assert (clone / "exercises/train.py").read_text() == "my answer\n"


def test_a_merge_that_fails_puts_the_edits_back(upstream: Path, clone: Path) -> None:
    (clone / "exercises/train.py").write_text("my answer\n")
    commit(upstream, {"exercises/train.py": "new\n"})
    (clone / ".git" / "index.lock").touch()  # as another git process would
    with pytest.raises(ValueError, match="index.lock"):
        update(clone)
    assert (clone / "exercises/train.py").read_text() == "my answer\n"
