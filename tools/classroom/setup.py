"""`course class init`: create the folder of a class, or put a newer course into it.

What the class shares is made in FOLDER/.init, with its permissions, and renamed when it is
complete. So an interruption leaves nothing half-made, and the same command continues.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from course.checks.shared_progress import DROP, has_access_list
from course.jobs import sites
from course.runs import PROJECT, trust, write_atomically
from course.runs.clone import git
from course.text import printable
from race.board import prepare

BUNDLE, START, SITES, DATA = "course.bundle", "start.sh", "sites.toml", "data"
BOARD, DRAFTS = "board", ".init"
DROP_MODE = 0o3733  # everyone adds files, and only the owner lists them
TEMPLATE = Path(__file__).with_name(START)
SKELETON = "# The class's sites. docs/sites.md explains the settings, with an example.\n"


def init(
    folder: Path,
    *,
    site: str = "",
    quick: bool = True,
    group: str = "",
    instructors: Sequence[str] = (),
) -> Iterator[str]:
    """Create the folder of a class; if it exists, replace the course in it and add what is missing.

    Yields:
        Lines that say what was done; the last two have the commands that learners type.

    Args:
        site: the site of the class's jobs, which start.sh sets, as it sets `quick`; "": this
            machine. An existing start.sh is replaced only if a site is given.
        group: the group of the drop box; "": your own if it holds instructors only, or else an ACL.
        instructors: names of further accounts that may read the drop box.

    Raises:
        JobError: others can change the folder.
        ValueError: the clone has uncommitted changes; learners could not update; no such site; or
            no way to keep the drop box private.
    """
    folder = Path(os.path.abspath(folder.expanduser()))
    accounts = {_account(name) for name in instructors} | {pwd.getpwuid(os.getuid())}
    with _readable_by_others(), _alone(folder):
        drafts = folder / DRAFTS
        shutil.rmtree(drafts, ignore_errors=True)  # of an interrupted command
        drafts.mkdir(mode=0o700)
        try:
            yield f"{BUNDLE}: {write_bundle(PROJECT, folder)}"
            yield f"{SITES}: {_write_sites(folder)}"
            yield f"{START}: {_write_start(folder, site, quick)}"
            yield f"{DROP}: {make_drop_box(folder, group, accounts)}"
            yield f"{BOARD}: {_make_board(folder)}"
            yield f"{DATA}: {_make_data(folder)}"
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
    for place, fix in _closed(folder):
        yield f"note: others cannot read {place}. To let them: {fix} {_quoted(place)}"
    yield f"Learners begin with:\n  {first_line(folder)}"
    yield f"and in each new shell:\n  {next_line(folder)}"


def first_line(folder: Path) -> str:
    """Return what a learner types once: it clones into their home, and starts."""
    # In a folder that others can write to, they could exchange the clone while git works, and git
    # would run their hook; so it is in the home. Without the umask, its group could write there.
    clone = f"git clone {_quoted(folder / BUNDLE)} course"
    return f"cd && umask g-w,o-w && {clone} && {next_line(folder)}"


def next_line(folder: Path) -> str:
    """Return what a learner types in each new shell."""
    return f"cd course && . {_quoted(folder / START)}"


def write_bundle(project: Path, folder: Path) -> str:
    """Write the committed state of a clone as branch main of FOLDER/course.bundle; describe it.

    Raises:
        ValueError: not a complete clone, uncommitted changes, or a commit that is not based on the
            one that learners have, so that they could not update.
    """
    if changed := git(project, "status", "--porcelain", "--untracked-files=no").splitlines():
        raise ValueError(
            f"{len(changed)} files in {project} have changes that are not committed, so learners "
            f"would not get them ({changed[0][3:]}): git commit -a, or put them aside: git stash"
        )
    if git(project, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise ValueError(
            f"{project} is a shallow clone, without older commits: git fetch --unshallow"
        )
    target, draft = folder / BUNDLE, folder / DRAFTS / BUNDLE
    if target.exists():
        handed_out = git(project, "bundle", "list-heads", str(target)).split()[0]
        try:
            git(project, "merge-base", "--is-ancestor", handed_out, "HEAD")
        except ValueError:
            raise ValueError(
                f"learners have commit {handed_out[:8]}, which {project} does not contain, so they "
                f"could not update: merge it, or check out the branch that you handed out"
            ) from None
    repository = str(folder / DRAFTS / "main.git")
    git(project, "init", "--quiet", "--bare", repository)
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")  # whatever init.defaultBranch is
    git(repository, "fetch", "--quiet", str(project), "HEAD:refs/heads/main")
    git(repository, "bundle", "create", str(draft), "HEAD", "main")
    draft.chmod(0o644)
    draft.replace(target)  # a learner who is reading the former one reads it to its end
    return printable(git(project, "log", "-1", "--format=%h, %cs: %s").strip())


def _write_sites(folder: Path) -> str:
    """Create the class's file of sites: a copy of the instructor's own, or an example."""
    target, own = folder / SITES, sites.user_file()
    if target.exists():
        return "kept"
    has_own = own.is_file()
    write_atomically(target, own.read_text(encoding="utf-8") if has_own else SKELETON)
    return f"a copy of {own}" if has_own else "no entry yet; add your cluster's if it needs one"


def _write_start(folder: Path, site: str, quick: bool) -> str:
    """Write what learners source; keep an existing file if no site is given."""
    target = folder / START
    if target.exists() and not site:
        return "kept (--site replaces it)"
    sites.get(site or "local", folder / SITES)
    is_conda = (Path(sys.prefix) / "conda-meta").is_dir()
    exports = {
        "COURSE_CLASS": folder,
        "COURSE_SITES": folder / SITES,
        "COURSE_DATA": folder / DATA,
        "COURSE_BOARD": folder / BOARD,
        "COURSE_SITE": site or "local",
        "COURSE_QUICK": int(quick),
    }
    values = {
        "START": _quoted(target),
        "LINE": shlex.quote(first_line(folder)),
        "ENVIRONMENT": _quoted(sys.prefix),
        "KIND": "CONDA_PREFIX" if is_conda else "VIRTUAL_ENV",
        "EXPORTS": "\n".join(f"  export {key}={_quoted(x)}" for key, x in exports.items()),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    write_atomically(target, text)
    return f"site {exports['COURSE_SITE']}, " + ("small runs" if quick else "full size")


def make_drop_box(folder: Path, group: str, accounts: set[pwd.struct_passwd]) -> str:
    """Create the folder to which learners add files that only instructors can read.

    Raises:
        ValueError: there is neither a group with instructors only, nor an access list (ACL).
    """
    target, gid = folder / DROP, None
    if group or not target.exists():
        gid = _private_group(group, accounts)
    if target.exists():
        _check_drop_box(target, gid)
        return "kept"
    draft = folder / DRAFTS / DROP
    draft.mkdir()
    if gid is None:
        _set_access_list(draft, [account.pw_uid for account in accounts])
    else:
        os.chown(draft, -1, gid)
        draft.chmod(DROP_MODE)
    draft.rename(target)
    names = ", ".join(sorted(account.pw_name for account in accounts))
    return f"files there can be read by {names}, and by no learner"


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"--instructors: there is no account {name!r} on this machine") from None


def _private_group(name: str, accounts: set[pwd.struct_passwd]) -> int | None:
    """Return the group for the drop box; None if your own group has other members.

    Raises:
        ValueError: no such group, you are not in it, or learners may be.
    """
    own = pwd.getpwuid(os.getuid()).pw_gid
    try:
        group = grp.getgrnam(name) if name else grp.getgrgid(own)
    except KeyError:
        if not name:
            return None
        raise ValueError(
            f"--group: there is no group {name!r}. To list your groups: id -Gn"
        ) from None
    others = _members(group) - {account.pw_name for account in accounts}
    if not name:
        return None if others else own
    if group.gr_gid not in {*os.getgroups(), own} and os.getuid() != 0:
        raise ValueError(f"--group {name}: you are not in it. To list your groups: id -Gn")
    if others:
        raise ValueError(
            f"--group {name}: {', '.join(sorted(others)[:5])} could read what learners send. "
            f"Name them if they are instructors (--instructors), or {_FIXES}"
        )
    return group.gr_gid


_FIXES = (
    "ask your administrators for a group of the instructors, and name it (--group NAME); or use a "
    "disk with access lists, and install setfacl (package acl)"
)


def _members(group: grp.struct_group) -> set[str]:
    """Return the names of a group's members, with those whose own group it is."""
    accounts = pwd.getpwall()
    members = {*group.gr_mem, *(x.pw_name for x in accounts if x.pw_gid == group.gr_gid)}
    # A directory service may not list its accounts: each of them may have this group as its own.
    is_listed = os.getuid() in {account.pw_uid for account in accounts}
    me = pwd.getpwuid(os.getuid())
    if not is_listed and group.gr_gid == me.pw_gid and group.gr_name != me.pw_name:
        members.add("accounts that this machine does not list")
    return members


def _set_access_list(drop: Path, uids: Sequence[int]) -> None:
    """Let these accounts list the folder, and read every file that is created in it."""
    entries = ["u::rwx", "g::wx", "o::wx", "m::rwx", "d:u::rwx", "d:g::-", "d:o::-", "d:m::r"]
    entries += [f"{kind}u:{uid}:{x}" for uid in uids for kind, x in (("", "rwx"), ("d:", "r"))]
    command = ["setfacl", "--modify", ",".join(entries), str(drop)]
    message = "it is not installed"
    with suppress(FileNotFoundError):
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        message = done.returncode and (done.stderr.strip() or f"exit code {done.returncode}")
    if message:
        raise ValueError(
            f"learners could read each other's files in {drop.parent.parent / DROP}, because your "
            f"group has other members, and setfacl failed ({message}): {_FIXES}"
        )
    drop.chmod(stat.S_IMODE(drop.stat().st_mode) | stat.S_ISVTX)


def _check_drop_box(drop: Path, gid: int | None) -> None:
    """Raise ValueError if the folder that is there is not as `make_drop_box` makes it."""
    status = drop.lstat()
    is_grouped = stat.S_IMODE(status.st_mode) == DROP_MODE and gid in (None, status.st_gid)
    if is_grouped or (has_access_list(drop) and gid is None):
        return
    raise ValueError(
        f"{drop} is not a drop box for these instructors (mode {stat.S_IMODE(status.st_mode):o}, "
        f"group {status.st_gid}): delete it, and run this command again"
    )


def _make_board(folder: Path) -> str:
    """Create the race's board, or the folders that are missing in it."""
    target = folder / BOARD
    if is_new := not target.exists():
        draft = folder / DRAFTS / BOARD
        draft.mkdir()
        draft.chmod(0o1777)
        prepare(draft)
        draft.rename(target)
    prepare(target)
    return "new" if is_new else "kept"


def _make_data(folder: Path) -> str:
    """Create the default set and the crops, each if it is missing: the last folder is checked."""
    env = os.environ | {"COURSE_DATA": str(folder / DATA)}
    for name, options in {DATA: [], f"{DATA}-blind-crops": ["--as", "crops"]}.items():
        command = [sys.executable, "-P", "-m", "course", "data", *options]
        if (
            not (folder / name).exists()
            and subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode
        ):
            raise ValueError(f"the data could not be created in {folder}: see above")
    return "complete"


@contextmanager
def _readable_by_others() -> Iterator[None]:
    """Create files that others can read, and cannot write to, whatever the umask is."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Create or check the folder, and let no other init work in it meanwhile."""
    _create(folder)
    try:
        with FileLock(folder / f"{DRAFTS}.lock", mode=0o600, timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another course class init runs in {folder}: wait for it") from None


def _create(folder: Path) -> None:
    """Create the folder of the class, or check the one that is there.

    Raises:
        JobError: others could change it.
        ValueError: something in it belongs to someone else.
    """
    trust.check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in [folder, *(folder / x for x in (BUNDLE, START, SITES, DATA, DROP, BOARD, DRAFTS))]:
        if os.path.lexists(path) and path.lstat().st_uid != os.getuid():
            raise ValueError(f"{path} belongs to someone else: move it, or use a different folder")
    for name in ("", BUNDLE, START, SITES):  # the folder may inherit a default access list
        trust.check_folder(folder / name)


def _closed(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield places that learners need and others cannot read, with the command that opens them."""
    packages = Path(sysconfig.get_path("purelib"))
    places = [Path(sys.prefix), Path(sys.executable).resolve(), packages]
    for above in sorted({parent for place in (folder, *places) for parent in place.parents}):
        if not above.stat().st_mode & 0o001:
            yield above, "chmod a+x"
    if folder.stat().st_mode & 0o005 != 0o005:
        yield folder, "chmod a+rx"  # and not what is in it: learners must not list the drop box
    for place in (*places, *packages.iterdir()):
        needed = 0o005 if place.is_dir() else 0o004
        if place.stat().st_mode & needed != needed:
            yield place, "chmod -R a+rX"


def _quoted(path: Path | str | int) -> str:
    return shlex.quote(str(path))
