"""The user's file of sites; their folder on this machine for locks and caches, closed to others."""

from __future__ import annotations

import getpass
import os
import re
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from platformdirs import user_config_path

CACHE = "TORCHINDUCTOR_CACHE_DIR"
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def user_file() -> Path:
    """Return the file of the user's sites: COURSE_SITES, or one in the config folder."""
    path = os.environ.get("COURSE_SITES")
    return Path(path) if path else user_config_path("make-training-fast") / "sites.toml"


def user_folder() -> Path:
    """Return this user's folder in the temporary directory of this machine; create it first.

    Anyone can create something of its name. Then it is the first folder of this user whose name
    begins alike, and goes on at random: all processes of the user find the same one.

    Raises:
        OSError: the temporary directory cannot be written.
    """
    place, name = Path(tempfile.gettempdir()), f"make-training-fast-{os.getuid()}"
    try:
        return _create(place / name)
    except PermissionError:
        return _create(_private_folder(place, f"{name}-"))


@cache  # the queue asks often, and a classmate can create a million such names in seconds
def _private_folder(place: Path, prefix: str) -> Path:
    """Return the first folder PREFIX… that only this user can read and write; create it first."""
    created: list[Path] = []
    while True:
        folders = [*created]
        for entry in os.scandir(place):
            with suppress(OSError):
                is_named = entry.name.startswith(prefix)
                if is_named and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    folders.append(_check(place / entry.name))
        if folders:
            return min(folders)
        created = [Path(tempfile.mkdtemp(prefix=prefix, dir=place))]  # others may make one, too


def protect_compile_cache() -> None:
    """Let PyTorch's compiler read only what this user wrote.

    The compiler unpickles and runs what it finds in its cache. By default that is a folder in the
    temporary directory that is named after the user, so anyone can create it first. Here it is
    created so that only the user can access it. If it belongs to someone else, the user's own
    folder takes its place, and no headers are precompiled, because PyTorch keeps those in its
    default folder.

    Raises:
        OSError: the temporary directory cannot be written.
    """
    default = Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}"
    chosen = Path(os.environ.get(CACHE, default)).absolute()
    try:
        _create(default)
    except OSError:
        os.environ[HEADERS] = "0"
        if compiler := sys.modules.get("torch._inductor.config"):  # it has read the variable
            compiler.cpp_cache_precompile_headers = False
    try:
        _create(chosen)
    except OSError as problem:
        folder = _create(user_folder() / "compile")
        os.environ[CACHE] = str(folder)
        # Not as an error: the last line of those explains why a run failed.
        print(f"{problem}. torch.compile would run what others put there: its cache is {folder}")


def _create(folder: Path) -> Path:
    """Create a folder that only this user can read and write, or check it; return it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return _check(folder)


def _check(folder: Path) -> Path:
    """Return the folder; raise PermissionError unless only this user can write to it."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} must be a folder that belongs to you, and it does not: remove it or ask its "
            f"owner to, or set TMPDIR to a folder of your own (chmod 700)"
        )
    if status.st_mode & 0o022:
        raise PermissionError(f"other users can write to {folder}: remove it, or chmod 700")
    return folder


def _user_name() -> str:
    """Return the user's name as PyTorch has it in the name of its folder."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
