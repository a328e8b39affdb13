"""Update to the newest version of the course, after backing up the learner's edits."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

from course.runs.run import PROJECT

INSTALLS = {"pyproject.toml", "requirements.lock"}  # a change needs `make setup`


def update(project: Path = PROJECT) -> str:
    """Fast-forward a clone to its upstream branch, and describe what changed.

    Files that were edited here and changed upstream are copied to `backups/` and replaced; other
    edits stay as they are.

    Raises:
        ValueError: not a clone with an upstream branch, or a branch that has commits which are
            not upstream, or git failed. No file has changed then.
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
    changed = _names(project, "diff", "--name-only", "--no-renames", f"HEAD..{upstream}")
    if changed:
        _check_mergeable(project, changed)
        _git(project, "reset", "--quiet")  # staged files become edited or untracked ones
    tracked = _names(project, "ls-files")
    edited = {*_names(project, "diff", "--name-only", "--no-renames", "HEAD")}
    # Git refuses to overwrite an untracked file, and overwrites an ignored one without asking.
    replaced = [
        name
        for name in changed
        if os.path.lexists(project / name) and (name in edited or name not in tracked)
    ]
    backup = project / "backups" / datetime.now().strftime("%Y%m%d-%H%M%S-%f")  # git ignores it
    try:
        for name in replaced:
            (backup / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, backup / name, follow_symlinks=False)
    except OSError as error:
        shutil.rmtree(backup, ignore_errors=True)
        raise ValueError(f"your edits cannot be backed up in {backup}: {error}") from error
    try:
        for name in replaced:
            (project / name).unlink()
        _git(project, "merge", "--quiet", "--ff-only", upstream)
    except BaseException:
        if replaced:
            shutil.copytree(backup, project, symlinks=True, dirs_exist_ok=True)
        raise
    commit = _git(project, "log", "-1", "--format=%h, %cs: %s").strip()
    if not changed:
        return f"already up to date: {commit}"
    lines = [f"updated to {commit}: {len(changed)} files changed"]
    lines += [f"  {name} is new; your version is {backup / name}" for name in replaced]
    if INSTALLS & {*changed}:
        lines.append("Packages changed. Install them: make setup")
    return "\n".join(lines)


def _check_mergeable(project: Path, changed: list[str]) -> None:
    """Raise ValueError if a merge is unfinished, or a changed file is a folder here."""
    merge_head = project / _git(project, "rev-parse", "--git-path", "MERGE_HEAD").strip()
    if merge_head.exists() or _names(project, "ls-files", "--unmerged"):
        raise ValueError(
            "a merge is unfinished here, see git status: finish it with git commit, or undo it "
            "with git merge --abort"
        )
    for name in changed:
        if (project / name).is_dir() and not (project / name).is_symlink():
            raise ValueError(f"{name} is a folder here, and a file upstream: move it elsewhere")


def _names(project: Path, *words: str) -> list[str]:
    return [name for name in _git(project, *words, "-z").split("\0") if name]


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
