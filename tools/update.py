"""Update a clone to the newest version of the course, and merge the learner's edits with it."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from course.runs import clone
from course.runs.files import UNFINISHED, write_atomically
from course.runs.run import PROJECT
from course.text import printable, read_utf8

INSTALLS = {"pyproject.toml", "requirements.lock"}  # a change needs `make setup`
# What git reports, and how to fix it; the first that fits counts.
FIXES = {
    "dubious ownership": "git refuses to read a clone that belongs to someone else. Ask its "
    "owner for a bundle (a file), and then: git remote set-url origin FILE. Or, if you trust the "
    "owner: git config --global --add safe.directory FOLDER",
    r"\(publickey|Authentication failed|could not read (Username|Password)|error: 40[134]|"
    "epository not found": "check your key or token, and that you may read the repository",
    "(?i)permission denied": "ask the owner of that file to let you read it: chmod -R a+rX",
    "resolve host|unable to access|onnect|timed out|unreachable": "check the network",
    "(?i)no space left|quota": "free some space on the disk of the clone",
    r"\.lock'": "if no other git is at work in this clone, one was killed: remove that file",
    "early EOF|index-pack|unrecognized header|bad pack|unpack-objects|invalid gitfile|"
    "find remote ref": "the file is damaged or incomplete: try again, and then ask the person who "
    "gave you the course",
}
MOST_PACKS = 3
INTERRUPTED = "-interrupted"  # ends the name of a backup until its update is complete
ADVICE = r"\s+(?=Please make sure|To add an exception)"  # git's own, which FIXES replaces


@dataclass(frozen=True)
class Edit:
    """A file that the learner has, and that the update changes.

    text: what to write; None: what the new version has. note: what to tell the learner; "" if
    nothing. is_kept: whether some of the learner's version stays although the course changed it.
    stamp: that of the learner's version.
    """

    name: str
    text: str | None = None
    note: str = ""
    is_kept: bool = False
    stamp: tuple[int, ...] = ()


def update(project: Path = PROJECT) -> str:
    """Move a clone to its upstream's newest version, and describe what changed.

    Files that were edited here and changed upstream are merged: where both changed the same lines,
    or the same cell of a notebook, the learner's stay. What is merged or replaced is copied to
    `backups/` first; other edits stay as they are.

    Raises:
        ValueError: not a clone with an upstream branch, or a branch that has commits which are
            not upstream, or is newer; or git failed. No file has changed then.
    """
    upstream = _upstream(project)
    lock = project / _git(project, "rev-parse", "--git-path", "course-update.lock").strip()
    try:
        with FileLock(lock, mode=0o600, timeout=0):
            return _update(project, upstream)
    except Timeout:
        raise ValueError(f"another course update is running in {project}: wait for it") from None


def _update(project: Path, upstream: str) -> str:
    _fetch(project, upstream)
    move = _move(project, upstream)
    changed = _names(project, "diff", "--name-only", "--no-renames", f"HEAD..{upstream}")
    if changed:
        _check_mergeable(project, changed)
        _git(project, "reset", "--quiet")  # staged files become edited or untracked ones
    edits = [*_edits(project, upstream, {*changed})]
    backup, written = _back_up(project, upstream, edits), []
    try:
        _write(project, upstream, edits, written)
        _git(project, *move, upstream)
    except BaseException:
        _restore(project, backup, written)
        if backup.exists():
            backup.rename(_finished(backup))
        raise
    commit = printable(_git(project, "log", "-1", "--format=%h, %cs: %s").strip())
    first = f"updated to {commit}: {len(changed)} files changed"
    if not changed:
        first = f"already up to date: {commit}"
    interrupted = _finish_backups(backup)
    backup = _finished(backup)
    return "\n".join([first, *_lines(edits, backup, changed), *interrupted])


def _finish_backups(own: Path) -> list[str]:
    """Rename complete backups, and return lines that name those of updates that were killed."""
    found = sorted(own.parent.glob(f"*{INTERRUPTED}"))
    for backup in found:
        backup.rename(_finished(backup))
    return [
        f"An update was interrupted. Your versions before it are in {_finished(backup)}"
        for backup in found
        if backup != own
    ]


def _finished(backup: Path) -> Path:
    return backup.with_name(backup.name.removesuffix(INTERRUPTED))


def _lines(edits: list[Edit], backup: Path, changed: list[str]) -> Iterator[str]:
    for edit in edits:
        if edit.note:
            new = f"; the new version is backups/{backup.name}/new/{edit.name}" * edit.is_kept
            yield printable(f"  {edit.name} {edit.note}{new}")
    if edits:
        yield f"Your versions of these files are in {backup}"
    if any(name.endswith(".ipynb") for name in changed):
        yield "In JupyterLab, reload open notebooks: File, Reload Notebook from Disk"
    if INSTALLS & {*changed}:
        yield "Packages changed. Install them: make setup"


def _upstream(project: Path) -> str:
    """Return the branch that the current one follows, such as origin/main."""
    own = "use a git clone that belongs to you; in a class, source start.sh there first"
    _git(project, "rev-parse", "--git-dir", fix=own)
    attach = "no branch is checked out: git switch main, which keeps your edits"
    _git(project, "symbolic-ref", "HEAD", fix=attach)
    return _git(
        project,
        *("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}"),
        fix="git branch --set-upstream-to=origin/main",
    ).strip()


def _fetch(project: Path, upstream: str) -> None:
    """Fetch; if that fails, raise ValueError with the cause."""
    remote, _, branch = upstream.partition("/")
    try:
        # Of a bundle that was cut in its header, a fetch of all branches finds none, and succeeds.
        wanted = [remote, branch] if branch else []
        # A class's bundle comes as a whole each time: git then joins the copies.
        gc = ("-c", f"gc.autoPackLimit={MOST_PACKS}", "-c", "gc.autoDetach=false")
        _git(project, *gc, "fetch", "--quiet", *wanted)
    except ValueError:
        url = _git(project, "config", f"remote.{remote}.url").strip()
        if url.startswith("/"):
            _check_readable(url)
        raise


def _check_readable(path: str) -> None:
    """Raise ValueError if a bundle or clone on this machine's disks is missing or not readable."""
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
    except FileNotFoundError:
        raise ValueError(
            f"{path}, where the course comes from, does not exist: is its disk mounted here? If it "
            f"has moved: git remote set-url origin NEW"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{path}, where the course comes from, cannot be read ({error.strerror}): ask its "
            f"owner to let you: chmod a+r, and a+x for the folders above"
        ) from None


def _move(project: Path, upstream: str) -> list[str]:
    """Return the git command that moves the branch; raise ValueError if it has own commits."""
    own_commits = int(_git(project, "rev-list", "--count", f"{upstream}..HEAD"))
    if not own_commits:
        return ["merge", "--quiet", "--ff-only"]
    published = ""
    with suppress(ValueError):  # as far as git remembers where the upstream branch was
        published = _git(project, "merge-base", "--fork-point", upstream, "HEAD")
    if published == _git(project, "rev-parse", "HEAD"):  # the upstream branch was rewritten
        if not int(_git(project, "rev-list", "--count", f"HEAD..{upstream}")):
            raise ValueError(
                f"{upstream} is older than what you have, by {own_commits} commits. Tell the "
                f"person who hands it out; to go back to it anyway: git reset --keep {upstream}"
            )
        return ["reset", "--quiet", "--keep"]
    raise ValueError(
        f"this branch has {own_commits} commits that {upstream} does not have. To keep them, "
        f"merge by hand: git merge {upstream}. If none is yours, {upstream} was rewritten: git "
        f"reset --keep {upstream}"
    )


def _check_mergeable(project: Path, changed: list[str]) -> None:
    """Raise ValueError if a merge is unfinished, or a changed file is a folder here, or inverse."""
    merge_head = project / _git(project, "rev-parse", "--git-path", "MERGE_HEAD").strip()
    if merge_head.exists() or _names(project, "ls-files", "--unmerged"):
        raise ValueError(
            "a merge is unfinished here, see git status: finish it with git commit, or undo it "
            "with git merge --abort"
        )
    for name in changed:
        if (project / name).is_dir() and not (project / name).is_symlink():
            raise ValueError(
                f"{name} is a folder here, and a file upstream: move your folder elsewhere"
            )
    tracked = {*_names(project, "ls-files")}
    for above in {str(parent) for name in changed for parent in Path(name).parents} - tracked:
        # Git would replace one that it ignores, without asking.
        if os.path.lexists(project / above) and not (project / above).is_dir():
            raise ValueError(f"{above} is a file here, and a folder upstream: move your file away")


def _edits(project: Path, upstream: str, changed: set[str]) -> Iterator[Edit]:
    """Yield what becomes of each file that exists here otherwise than in HEAD, and changes."""
    tracked = {*_names(project, "ls-files")}
    edited = {*_names(project, "diff", "--name-only", "--no-renames", "HEAD")}
    # Git refuses to overwrite an untracked file, and overwrites an ignored one without asking.
    replaced = {name for name in changed if name in edited or name not in tracked}
    given = {name for name in edited if _solution(name) in changed}  # may have the old solution
    for name in sorted(replaced | given):
        if os.path.lexists(project / name):
            stamp = _stamp(project / name)
            edit = replace(_edit(project, upstream, name), stamp=stamp)
            if name in replaced or _changes(project, edit):
                yield edit


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what differs after an editor has saved a file."""
    status = path.lstat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _changes(project: Path, edit: Edit) -> bool:
    return edit.text is not None and edit.text != read_utf8(project / edit.name)


def _edit(project: Path, upstream: str, name: str) -> Edit:
    """Merge a file with its new version, or say why it is replaced."""
    from tools.merge import Versions, merge

    base, theirs = (_show(project, commit, name) for commit in ("HEAD", upstream))
    if theirs is None and not _names(project, "ls-tree", "--name-only", upstream, name):
        return Edit(name, note="was removed from the course")
    if base is None or theirs is None or not stat.S_ISREG((project / name).lstat().st_mode):
        return Edit(name, note="was replaced by the new version")
    solutions = [_show(project, commit, _solution(name)) for commit in ("HEAD", upstream)]
    try:
        versions = Versions(base, read_utf8(project / name), theirs)
        merged = merge(name, versions, None if None in solutions else (*solutions,))
    except ValueError as error:
        return Edit(name, note=f"was replaced, because yours could not be merged: {error}")
    note = f"was merged; yours stays in {merged.kept}" if merged.kept else "was merged"
    return Edit(name, merged.text, note * merged.is_edited, bool(merged.kept))


def _solution(name: str) -> str:
    """Return the path of the solution that an exercise is generated from; "" for other files."""
    folder, _, script = name.partition("/")
    return f"solutions/{script}" if folder == "exercises" else ""


def _back_up(project: Path, upstream: str, edits: list[Edit]) -> Path:
    """Copy files to a new folder in backups/, and return it; `new` has the course's versions."""
    name = datetime.now().strftime("%Y%m%d-%H%M%S-%f") + INTERRUPTED
    backup = project / "backups" / name  # git ignores it
    try:
        for edit in edits:
            (backup / edit.name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / edit.name, backup / edit.name, follow_symlinks=False)
            if edit.is_kept:
                (new := backup / "new" / edit.name).parent.mkdir(parents=True, exist_ok=True)
                new.write_text(_show(project, upstream, edit.name) or "", encoding="utf-8")
    except OSError as error:
        shutil.rmtree(backup, ignore_errors=True)
        raise ValueError(f"your edits cannot be backed up in {backup}: {error}") from error
    return backup


def _write(project: Path, upstream: str, edits: list[Edit], written: list[Edit]) -> None:
    """Write the new texts; git's index then has the new version, so that git accepts them.

    A process that is killed in between leaves each file complete, and another update goes on.

    Args:
        written: gets each edit before its file changes.

    Raises:
        ValueError: a file was saved since it was read; or git failed.
    """
    if edits:
        _git(project, "reset", "--quiet", upstream, "--", *(edit.name for edit in edits))
    for edit in edits:
        path = project / edit.name
        if _stamp(path) != edit.stamp:
            raise ValueError(f"{edit.name} was saved during the update: run course update again")
        written.append(edit)
        if edit.text is not None:
            write_atomically(path, edit.text, mode=stat.S_IMODE(path.stat().st_mode))
        elif _names(project, "ls-files", "--", edit.name):
            _git(project, "checkout-index", "--force", "--", edit.name)
        else:
            path.unlink()


def _restore(project: Path, backup: Path, edits: list[Edit]) -> None:
    for edit in edits:
        path = project / edit.name
        draft = path.with_name(f"{UNFINISHED}{path.name}")
        shutil.copy2(backup / edit.name, draft, follow_symlinks=False)
        draft.replace(path)
    with suppress(ValueError):
        _git(project, "reset", "--quiet")


def _show(project: Path, commit: str, name: str) -> str | None:
    """Return a file's text in a commit; None if it is not there, or no text in UTF-8."""
    if not name:
        return None
    try:
        text = _git(project, "show", f"{commit}:{name}")
        text.encode()
    except ValueError:
        return None
    return None if "\0" in text else text


def _names(project: Path, *words: str) -> list[str]:
    return [name for name in _git(project, words[0], "-z", *words[1:]).split("\0") if name]


def _git(project: Path, *words: str, fix: str = "") -> str:
    """Return a git command's output; raise ValueError with its message and the fix if it fails."""
    try:
        return clone.git(project, *words)
    except ValueError as error:
        fix = fix or next((x for words, x in FIXES.items() if re.search(words, str(error))), "")
        message = re.split(ADVICE, printable(str(error)))[0]
        raise ValueError(f"{message}. To fix it: {fix}" if fix else message) from None
