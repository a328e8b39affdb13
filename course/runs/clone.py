"""The clone of the course: git in it, and whether an update is waiting."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from course.runs.files import PROJECT

GIT_S = 5  # for git in the clone to answer
PATIENCE_S = 0.05  # for a shared disk to show whether the class's bundle is new
NAMES = "HEAD refname objectname upstream upstream:remotename upstream:remoteref upstream:track"
FIELDS = "%00".join(f"%({name})" for name in NAMES.split())
WAITING = "An update of the course is waiting: course update"


def start_git(project: Path | str, *words: str) -> subprocess.Popen[str]:
    """Start git in a clone; it asks nothing, and its messages are in English.

    Raises:
        FileNotFoundError: git is not installed.
    """
    return subprocess.Popen(
        ["git", "-C", str(project), "--literal-pathspecs", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",  # names of files
        env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
    )


def git(project: Path | str, *words: str, timeout_s: float | None = None) -> str:
    """Return the output of git in a clone.

    Raises:
        ValueError: git failed, with its message, or is not installed.
        subprocess.TimeoutExpired: git is still running, and is killed.
    """
    try:
        process = start_git(project, *words)
    except FileNotFoundError:
        raise ValueError("git is not installed: install it, and try again") from None
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if process.returncode:
        raise ValueError(errors.strip() or f"git {words[0]} failed in {project}")
    return output


def look_for_update(project: Path = PROJECT) -> Callable[[], str]:
    """Begin to look for an update, without the network; return a function that waits for it.

    Its result is `WAITING`, or "". It compares the clone with what the last fetch found and, if
    the clone comes from a file (a class's bundle), with that file. It never fails: a disk that
    does not answer within `PATIENCE_S` is left alone.
    """
    try:
        refs = ("for-each-ref", f"--format={FIELDS}", "refs/heads", "refs/remotes")
        listed = git(project, *refs, timeout_s=GIT_S)
        branches = [line.split("\0") for line in listed.splitlines()]
        commits = {name: commit for _, name, commit, *_ in branches}
        (current,) = [branch for branch in branches if branch[0] == "*"]
        upstream, remote, name, track = current[3:]
        if "behind" in track:
            return lambda: WAITING
        url = git(project, "config", f"remote.{remote}.url", timeout_s=GIT_S).strip()
        if not url.startswith("/"):
            return lambda: ""
        looking = start_git(project, "ls-remote", url, name)
    except (OSError, ValueError, subprocess.SubprocessError):
        return lambda: ""
    return lambda: WAITING if _newest(looking) not in ("", commits.get(upstream)) else ""


def _newest(looking: subprocess.Popen[str]) -> str:
    """Return the commit that git ls-remote found; "" if none, or not in time."""
    try:
        found, _ = looking.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        looking.kill()  # and do not wait: a disk that hangs would hold it
        return ""
    return found.partition("\t")[0]
