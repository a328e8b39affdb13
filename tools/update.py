"""Update to the newest version of the course, after backing up the learner's edits."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course.runs.run import PROJECT

BACKUPS = "backups"  # in the clone; git ignores it
INSTALLS = ("pyproject.toml", "requirements.lock")  # a change needs `make setup`


@dataclass(frozen=True)
class Update:
    """The result of `update`: the files that changed, and where edited ones were copied."""

    commit: str
    changed: tuple[str, ...]  # paths in the clone
    replaced: tuple[str, ...]  # of these, the files with edits, which are in `backup`
    backup: Path

    def __str__(self) -> str:
        if not self.changed:
            return f"already up to date: {self.commit}"
        lines = [f"updated to {self.commit}: {len(self.changed)} files changed"]
        for name in self.replaced:
            lines.append(f"  {name} is new; your version is {self.backup / name}")
        if set(INSTALLS) & set(self.changed):
            lines.append("Packages changed. Install them: make setup")
        return "\n".join(lines)


def update(project: Path = PROJECT) -> Update:
    """Fast-forward a clone to its upstream branch.

    Files that were edited here and changed upstream are copied to `backups/` and replaced; other
    edits stay as they are.

    Raises:
        ValueError: not a clone with an upstream branch, or a branch that has commits which are
            not upstream, or git failed. Nothing has changed then.
    """
    _git(project, "rev-parse", "--git-dir", fix="git clone the course, and update the clone")
    upstream = _git(
        project,
        *("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}"),
        fix="git branch --set-upstream-to=origin/main",
    ).strip()
    _git(project, "fetch", "--quiet", fix="check the network, and that you may read the repository")
    own_commits = int(_git(project, "rev-list", "--count", f"{upstream}..HEAD"))
    if own_commits:
        raise ValueError(
            f"this branch has {own_commits} commits that {upstream} does not have. To keep them, "
            f"merge by hand: git merge {upstream}"
        )
    changed = _names(
        _git(project, "diff", "--name-only", "--no-renames", "-z", f"HEAD..{upstream}")
    )
    edited = set(_names(_git(project, "diff", "--name-only", "--no-renames", "-z", "HEAD")))
    tracked = set(_names(_git(project, "ls-files", "-z")))
    # Git refuses to overwrite an untracked file, and overwrites an ignored one without asking.
    replaced = [
        name
        for name in changed
        if name in edited or (name not in tracked and os.path.lexists(project / name))
    ]
    backup = project / BACKUPS / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    _back_up(project, replaced, backup)  # nothing in the clone changes before it is complete
    try:
        _clear(project, replaced)
        _git(project, "merge", "--quiet", "--ff-only", upstream)
    except BaseException:
        _put_back(project, backup)
        raise
    commit = _git(project, "log", "-1", "--format=%h, %cs: %s").strip()
    copied = tuple(name for name in replaced if os.path.lexists(backup / name))
    return Update(commit, tuple(changed), copied, backup)


def _back_up(project: Path, names: list[str], backup: Path) -> None:
    """Copy edited files to the backup, all of them or none."""
    for name in names:
        if (project / name).is_dir() and not (project / name).is_symlink():
            raise ValueError(f"{name} is a folder here, and a file upstream: move it elsewhere")
    try:
        for name in names:
            if os.path.lexists(project / name):  # else it was deleted
                (backup / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / name, backup / name, follow_symlinks=False)
    except BaseException as error:
        shutil.rmtree(backup, ignore_errors=True)
        if isinstance(error, OSError):
            raise ValueError(f"your edits cannot be backed up in {backup}: {error}") from error
        raise


def _clear(project: Path, names: list[str]) -> None:
    """Restore git's version of files that are backed up, and remove untracked ones."""
    for name in names:
        (project / name).unlink(missing_ok=True)
        if _git(project, "ls-tree", "--name-only", "HEAD", "--", name):
            _git(project, "checkout", "--quiet", "HEAD", "--", name)
        else:
            _git(project, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", name)


def _put_back(project: Path, backup: Path) -> None:
    if backup.exists():
        shutil.copytree(backup, project, symlinks=True, dirs_exist_ok=True)


def _names(listing: str) -> list[str]:
    return [name for name in listing.split("\0") if name]


def _git(project: Path, *words: str, fix: str = "") -> str:
    """Return a git command's output; raise ValueError with its message and the fix if it fails."""
    command = ["git", "-C", str(project), "--literal-pathspecs", *words]
    env = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env)
    except FileNotFoundError:
        raise ValueError("git is not installed: install it, and try again") from None
    if done.returncode:
        message = done.stderr.strip() or f"git {words[0]} failed"
        raise ValueError(f"{message}. To fix it: {fix}" if fix else message)
    return done.stdout
