"""Find what a different account can change of what is executed or stored, and refuse to go on.

This finds folders that were left open, as with umask 002 in a group's folder. It can't find a
change that was already made: then this module may have been changed, too.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path

from course.runs import shared_files as files
from course.runs.errors import JobError
from course.runs.files import PROJECT, folder_from
from course.runs.shared_files import user_name
from course.runs.user_folder import CACHE, user_file, user_folder

VARIABLE = "COURSE_TRUST"  # paths that others may change, separated as in PATH
HIDDEN = 65534  # owns the files of accounts that a container or a file server does not show
PEOPLE, USERS = 500, 100  # people's first uid and gid on any system; Linux's group of all users
CONTAINERS = {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"}  # they list only their user
MODULES = ("*.py*", "*.so", "__pycache__", "__pycache__/*")
FEW, LINES = 3, 10  # names in a line of a message, and lines in it
ELSEWHERE = "\nOr use a new folder, in your home or on a scratch disk: export COURSE_RUNS=FOLDER"


@dataclass(frozen=True)
class Opening:
    """A path that a different account can change.

    Attributes:
        writers: the accounts, in words.
        is_parent: nothing is executed from it, but from a folder in it, which they can replace.
        is_certain: False if these accounts are meant to, or may be none: a launch goes on.
    """

    path: Path
    writers: str
    fix: str
    is_parent: bool
    is_certain: bool

    @property
    def is_trusted(self) -> bool:
        """Whether COURSE_TRUST names it, or a folder that it is in."""
        real = self.path.resolve()
        return not trusted_paths().isdisjoint({self.path, *self.path.parents, real, *real.parents})

    def __str__(self) -> str:
        return f"{self.path}: {self.writers} can change it"


def check(scripts: Iterable[Path] = (), folders: Iterable[Path] = ()) -> list[str]:
    """Return the openings that COURSE_TRUST accepts, in words.

    Args:
        scripts: files that the launch copies and executes.
        folders: those from which it may import any module.

    Raises:
        JobError: a different account can change what the launch would execute.
        ValueError: COURSE_TRUST names a path that does not exist.
    """
    runs_root()
    return _accepted(openings(scripts, folders))


def runs_root(*, is_checked: bool = True) -> Path:
    """Return the folder of all runs: the variable COURSE_RUNS, or else runs/ in the project.

    On a cluster it must be on a disk that login and compute nodes share.

    Raises:
        JobError: a different account can change it, or what is directly in it, or exchange it.
            What is found there is executed, sent to a class, or followed to other files of yours.
    """
    chosen = folder_from("COURSE_RUNS") or PROJECT / "runs"
    if is_checked:
        check_folder(chosen, ELSEWHERE)
        _check_inside(chosen.resolve())
    return chosen.resolve()


def check_folder(folder: Path, advice: str = "") -> None:
    """Raise a JobError, which also has the advice, if others can change or exchange the folder."""
    _accepted(_openings([folder], is_chosen=True).values(), advice)


@cache  # now, no one else can put anything into it
def _check_inside(root: Path) -> None:
    """Raise like `runs_root` if others can still change what is in it, from when it was open."""
    with suppress(OSError):  # there is no such folder, or it cannot be read
        _accepted(_openings([root, *root.iterdir()], is_chosen=True).values(), ELSEWHERE)


def _accepted(candidates: Iterable[Opening], advice: str = "") -> list[str]:
    """Return the openings that COURSE_TRUST accepts; raise JobError if there are others."""
    certain = [x for x in sorted(candidates, key=attrgetter("path")) if x.is_certain]
    if refused := [opening for opening in certain if not opening.is_trusted]:
        lines = [f"  {opening}. {opening.fix}" for opening in refused[:LINES]]
        lines += [f"  … and {len(refused) - LINES:,} more"] * (len(refused) > LINES)
        places = {opening.path for opening in refused[:LINES]}
        paths = [str(place) for place in sorted(places) if places.isdisjoint(place.parents)]
        options = " ".join(f"--trust-folder {shlex.quote(path)}" for path in paths)
        raise JobError(
            "other people could change what you run or store. Nothing was launched, ended or "
            "recorded.\n" + "\n".join(lines) + f"{advice}\nIf you trust all of them, add {options} "
            f"to a launch, or set the variable {VARIABLE}; in a notebook, "
            f"os.environ[{VARIABLE!r}] = {os.pathsep.join(paths)!r}"
        )
    return [str(opening) for opening in certain]


def trusted_paths() -> set[Path]:
    """Return the paths in COURSE_TRUST; each includes what is in it."""
    names = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for name in names:
        if not Path(name).exists():
            raise ValueError(f"{VARIABLE}: {name!r} does not exist: expected folders or files")
    return {Path(place(name)) for name in names for place in (os.path.abspath, os.path.realpath)}


def openings(scripts: Iterable[Path] = (), folders: Iterable[Path] = ()) -> list[Opening]:
    """Return what different accounts can change of what a launch executes; see `check`."""
    folders = [*folders]
    executed = [runs_root(is_checked=False), user_file(), *scripts, *folders]
    executed += [module for folder in folders for module in _modules(folder)]
    executed += filter(None, [os.environ.get(CACHE)])  # PyTorch's compiler runs what is in it
    with suppress(OSError):  # a full disk
        executed.append(user_folder())  # tickets of the queue in it name what to execute
    chosen = _openings(executed, is_chosen=True)
    found = chosen | _installed()  # more is executed of a clone that also has the runs
    kinds = {(path, x.writers, x.is_parent, x.is_certain) for path, x in found.items()}
    return [  # not those of which a folder above says the same
        x
        for _, x in sorted(found.items())
        if not any((str(p), x.writers, x.is_parent, x.is_certain) in kinds for p in x.path.parents)
    ]


def _modules(folder: Path) -> list[Path]:
    """Return the modules directly in a folder, and its packages with what is in them."""
    packages = [path.parent for path in folder.glob("*/__init__.py")]
    paths = [*map(folder.glob, MODULES), *(package.rglob("*") for package in packages)]
    return [*packages, *(path for found in paths for path in found)]


@cache
def _installed() -> dict[str, Opening]:
    """Return the openings of the environment and the clone, which a process examines once."""
    packages = [path.parent for path in PROJECT.glob("*/__init__.py")]
    scripts = [PROJECT / name for name in ("solutions", "exercises", "notebooks")]
    inside = [folder for tree in [*packages, *scripts] for folder, _, _ in os.walk(tree)]
    python = [os.path.dirname(sys.executable), *filter(None, sys.path)]
    return _openings([*python, PROJECT, PROJECT / ".git", *inside, sys.executable], is_chosen=False)


def _openings(executed: Iterable[Path | str], *, is_chosen: bool) -> dict[str, Opening]:
    """Return by path the openings of files, of folders to import from, and of what they are in.

    Args:
        is_chosen: by the launch, so that it counts to whom they belong. The clone and the
            environment are not: their code is running.
    """
    targets, found = {os.path.abspath(path) for path in executed}, {}
    for path, status in _parts(targets):
        is_parent = path not in targets
        certain, possible = _writers(path, status, is_parent=is_parent, is_chosen=is_chosen)
        if writers := certain or possible:
            fix = _fix(path, status, is_parent=is_parent)
            words = " and ".join(writers)
            found[path] = Opening(Path(path), words, fix, is_parent, is_certain=bool(certain))
    return found


def _parts(targets: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each path with its status, and likewise the folders that it is in.

    If it is a link, also what it leads to, which becomes one of the targets.
    """
    todo, seen = [*targets], set()
    while todo:
        if (path := todo.pop()) in seen:
            continue
        seen.add(path)
        todo.append(os.path.dirname(path))
        with suppress(OSError):  # it does not exist: its folder decides who may create it
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                # Relative to the folder that this path really leads to.
                end = os.path.join(os.path.realpath(os.path.dirname(path)), os.readlink(path))
                ends = {os.path.normpath(end), os.path.realpath(end)}
                todo += ends
                targets |= ends if path in targets else set()
            yield path, status


def _writers(
    path: str, status: os.stat_result, *, is_parent: bool, is_chosen: bool
) -> tuple[list[str], list[str]]:
    """Return in words the accounts that can change a path, and those that perhaps can."""
    certain, possible, mode = [], [], status.st_mode
    if status.st_uid not in _trusted():
        # Of a folder above, if anyone could have created it, such as your name on a scratch disk.
        is_taken = not is_parent or os.stat(os.path.dirname(path)).st_mode & 0o022
        is_stranger = is_chosen and is_taken and status.st_uid != HIDDEN
        (certain if is_stranger else possible).append(f"{user_name(status.st_uid)}, its owner,")
    is_sticky = stat.S_ISDIR(mode) and is_parent and mode & stat.S_ISVTX
    if stat.S_ISLNK(mode) or is_sticky:  # only the owner can replace it, or what is in it
        return certain, possible
    inherited = [] if is_parent else files.access_list(path, "default")
    certain += [f"{who}, by its default ACL," for who in _listed(inherited, status)]
    if mode & stat.S_IWOTH:
        people, may_be_more = _people()
        is_shared = may_be_more or people - _trusted()
        (certain if is_shared else possible).append("everyone on this machine")
    elif mode & stat.S_IWGRP:
        group = [(files.ACL_OWNING_GROUP, files.ACL_WRITE, 0)]
        certain += _listed(files.access_list(path) or group, status)
    return certain, possible


def _listed(entries: Iterable[tuple[int, int, int]], status: os.stat_result) -> list[str]:
    """Return in words the other accounts that can write by an access control list's entries.

    The permission of a path's group is the list's mask: without it, no entry of the list can write,
    but for the owner's and everyone's; with it, those can that have the permission themselves.
    """
    writing = [(tag, number) for tag, access, number in entries if access & files.ACL_WRITE]
    users = {number for tag, number in writing if tag == files.ACL_USER} - _trusted()
    groups = {number for tag, number in writing if tag == files.ACL_GROUP}
    groups |= {status.st_gid} if files.ACL_OWNING_GROUP in dict(writing) else set()
    others = filter(None, [_others_in(gid, _trusted()) for gid in sorted(groups)])
    return [*map(user_name, sorted(users)), *others]


@cache
def _others_in(gid: int, trusted: frozenset[int]) -> str:
    """Describe the accounts of a group that are not trusted; "" if it has none."""
    (people, may_be_more), known = _people(), {*map(user_name, trusted)}
    try:
        name, members = grp.getgrgid(gid)[0::3]
    except KeyError:
        name, members = str(gid), []
    first = {
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_gid == gid and account.pw_uid in people
    }
    others = sorted({*members, *first} - known)
    if others:
        return f"group {name} ({', '.join(others[:FEW])}{', …' * (len(others) > FEW)})"
    # A group with a user's name or number is that user's alone; a system's names its members.
    is_private = name in known or gid in trusted or (gid < PEOPLE and gid != USERS)
    is_listed = is_private or not may_be_more
    return "" if is_listed else f"group {name}, whose members are not listed here,"


@cache
def _people() -> tuple[set[int], bool]:
    """Return the uids of people on this machine, and whether there may be more than are listed.

    Directories such as LDAP know their users, and often list none. On a machine of one person, as
    in most containers, files that everyone may write are no danger.
    """
    accounts = {account.pw_uid: account for account in pwd.getpwall()}
    people = {
        uid
        for uid, account in accounts.items()
        if uid >= PEOPLE and uid != HIDDEN and not account.pw_shell.endswith(("nologin", "false"))
    }
    mine = os.getuid()
    is_known = mine in accounts or user_name(mine) == f"user {mine}"  # or in no directory either
    return people, not is_known or not CONTAINERS.isdisjoint(os.environ)


def _trusted() -> frozenset[int]:
    return _owners(os.environ.get("COURSE_CLASS"))


@cache
def _owners(class_folder: str | None) -> frozenset[int]:
    """Return the accounts that may change what is executed.

    They are the user, root, the owners of the clone and the environment, whose code is running,
    and the owner of the class folder that the user chose.
    """
    places = filter(None, (PROJECT, sys.prefix, class_folder))
    return frozenset({0, os.getuid(), *(os.stat(x).st_uid for x in places if os.path.exists(x))})


def _fix(path: str, status: os.stat_result, *, is_parent: bool) -> str:
    """Return what closes an opening."""
    deep = "-R " * (stat.S_ISDIR(status.st_mode) and not is_parent)
    command = f"chmod {deep}g-w,o-w {shlex.quote(path)}"
    if not is_parent and files.access_list(path, "default"):  # new files would get it again
        command = f"setfacl -R -k {shlex.quote(path)}; {command}"
    if status.st_uid == os.getuid():
        return command
    if path == tempfile.gettempdir():
        return "Use a folder of your own: export TMPDIR=FOLDER"
    if status.st_uid not in _trusted():
        return "Use one of your own, in a folder that belongs to you"
    return f"Ask {user_name(status.st_uid)}: {command}; or use a copy in your own folder"
