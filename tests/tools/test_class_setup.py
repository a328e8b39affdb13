"""`course class init`: a class folder, as its instructor and its learners use it."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from filelock import FileLock
from race_helpers import as_user

from course.checks import shared_progress
from course.runs import trust
from course.runs.errors import JobError
from tools.classroom import setup

ALICE, BOB = 54_321, 54_322  # users need no account to have files and processes
DAEMON, SYNC = 1, 4  # accounts with a group of their own, and with that of nobody
IS_ROOT = sys.platform.startswith("linux") and os.getuid() == 0
as_others = pytest.mark.skipif(not IS_ROOT, reason="to act as other users takes root, on Linux")
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name} here"))
    for name in ("bash", "dash", "zsh")
]
MODES = {
    "": 0o755,
    "course.bundle": 0o644,
    "start.sh": 0o644,
    "sites.toml": 0o644,
    "drop": 0o3733,
    "board": 0o1777,
    "board/quick": 0o1777,
    "board/verified": 0o755,
}


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", f"A new {name}")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that others may enter: pytest closes its own."""
    with TemporaryDirectory(dir="/tmp", prefix="class-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def project(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an instructor's clone on a branch, with few files, and an environment of its own."""
    folder = place / "instructor's"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "my-branch")
    commit(folder, "course/__main__.py", "print(__file__)\n")
    (place / "env" / "bin").mkdir(parents=True)
    (place / "env" / "bin" / "python").symlink_to("/bin/sh")
    monkeypatch.setattr(setup, "PROJECT", folder)
    monkeypatch.setattr(setup, "_make_data", lambda folder: "not in this test")
    monkeypatch.setattr(sys, "prefix", str(place / "env"))
    monkeypatch.setenv("COURSE_SITES", str(place / "none.toml"))
    monkeypatch.delenv(trust.VARIABLE)
    monkeypatch.setattr(trust, "_people", lambda: (set(), True))  # as with a directory of users
    trust._others_in.cache_clear()
    return folder


@pytest.fixture
def class_folder(place: Path, project: Path) -> Path:
    """Return the folder of a class, with a name that a shell would take apart."""
    folder = place / 'it\'s $HOME; a "class"'
    init(folder)
    return folder


def init(folder: Path, **options: object) -> str:
    return "\n".join(setup.init(folder, **options))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestFolder:
    def test_two_inits_at_once_do_not_meet(self, class_folder: Path) -> None:
        lock = FileLock(class_folder / ".init.lock", mode=0o600)
        with lock, pytest.raises(ValueError, match="another course class init runs in"):
            init(class_folder)
        assert "course.bundle: " in init(class_folder)

    @pytest.mark.parametrize("umask", [0o077, 0o002])
    def test_others_read_all_and_write_nothing(
        self, place: Path, project: Path, umask: int
    ) -> None:
        before = os.umask(umask)
        try:
            init(place / "class")
        finally:
            assert os.umask(before) == umask  # it is only changed for a time
        assert {name: mode(place / "class" / name) for name in MODES} == MODES
        names = {path.name for path in (place / "class").iterdir()}
        assert names == {".init.lock"} | {name for name in MODES if name and "/" not in name}

    def test_again_replaces_the_course_and_keeps_the_rest(
        self, class_folder: Path, project: Path
    ) -> None:
        kept = ["start.sh", "sites.toml"]
        for name in kept:
            (class_folder / name).write_text(f"# mine {name}\n")
        (class_folder / "drop" / "ann-1.json").write_text("{}")
        (class_folder / "board" / "quick" / "entry").mkdir()
        before = (class_folder / "course.bundle").read_bytes()
        commit(project, "fix.txt", "fixed\n")
        assert "A new fix.txt" in init(class_folder)
        assert (class_folder / "course.bundle").read_bytes() != before
        assert [(class_folder / name).read_text() for name in kept] == [
            f"# mine {name}\n" for name in kept
        ]
        assert (class_folder / "drop" / "ann-1.json").exists()
        assert (class_folder / "board" / "quick" / "entry").exists()

    def test_an_interruption_leaves_nothing_half_made(
        self, place: Path, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(draft: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(setup, "prepare", stop)
            init(place / "class")
        assert not (place / "class" / "board").exists()
        assert not (place / "class" / ".init").exists()
        (place / "class" / ".init" / "board").mkdir(parents=True)  # of one that was killed
        init(place / "class")
        assert {name: mode(place / "class" / name) for name in MODES} == MODES

    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [
            ("chmod 777 .", "everyone on this machine can change it. chmod g-w,o-w "),
            ("mkdir -p a/b; chmod 777 a; ln -s a/b class", "/a: everyone on this machine can "),
            ("mkdir class; chgrp 65534 class; chmod 770 class", "/class: group .* can change it"),
            ("mkdir class; touch class/start.sh; chmod 666 class/start.sh", "start.sh: everyone "),
            ("mkdir class class/drop; chown 54321 class/drop", "drop belongs to someone else"),
            ("mkdir class class/drop", "not a drop box .*mode 755.*: delete it"),
            ("mkdir class; ln -s / class/board; chown -h 54321 class/board", "board belongs to"),
        ],
    )
    @as_others
    def test_a_folder_that_others_control_is_refused(
        self, place: Path, project: Path, prepare: str, reason: str
    ) -> None:
        subprocess.run(["sh", "-c", prepare], cwd=place, check=True)
        with pytest.raises((JobError, ValueError), match=reason):
            init(place / "class")

    def test_a_site_is_checked_before_learners_get_it(
        self, place: Path, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ValueError, match="no site 'my-cluster': .*class/sites.toml"):
            init(place / "class", site="my-cluster")
        assert not (place / "class" / "start.sh").exists()
        (place / "class" / "sites.toml").write_text('[my-cluster]\nexecutor = "slurm"\n')
        init(place / "class", site="my-cluster", quick=False)
        assert "COURSE_SITE=my-cluster\n  export COURSE_QUICK=0\n" in text_of(place / "class")
        assert "kept" in init(place / "class")
        assert "COURSE_SITE=my-cluster" in text_of(place / "class")
        init(place / "class", site="slurm")
        assert "COURSE_SITE=slurm" in text_of(place / "class")

    def test_sites_of_the_instructor_are_copied(
        self, place: Path, project: Path, user_sites: Path
    ) -> None:
        user_sites.write_text('[ours]\nexecutor = "slurm"\n')
        assert f"a copy of {user_sites}" in init(place / "class", site="ours")


def text_of(folder: Path) -> str:
    return (folder / "start.sh").read_text()


class TestBundle:
    def test_learners_clone_and_update_from_it(
        self, place: Path, project: Path, class_folder: Path
    ) -> None:
        clone = place / "clone"
        git(place, "clone", "-q", str(class_folder / "course.bundle"), str(clone))
        assert git(clone, "branch", "--show-current") == "main\n"
        commit(project, "fix.txt", "fixed\n")
        init(class_folder)
        git(clone, "pull", "-q")
        assert (clone / "fix.txt").read_text() == "fixed\n"

    def test_uncommitted_changes_are_refused(self, project: Path, class_folder: Path) -> None:
        (project / "notes.txt").write_text("not tracked, so not part of the course\n")
        init(class_folder)
        (project / "course" / "__main__.py").write_text("fixed\n")
        with pytest.raises(ValueError, match="1 files .*course/__main__.py.*git commit.*git stash"):
            init(class_folder)

    def test_a_course_that_learners_could_not_update_to_is_refused(
        self, project: Path, class_folder: Path
    ) -> None:
        before = (class_folder / "course.bundle").read_bytes()
        git(project, "commit", "-q", "--amend", "-m", "Another history")
        with pytest.raises(ValueError, match="could not update: merge it"):
            init(class_folder)
        assert (class_folder / "course.bundle").read_bytes() == before

    def test_a_shallow_clone_is_refused(
        self, place: Path, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit(project, "fix.txt", "fixed\n")
        git(place, "clone", "-q", "--depth=1", f"file://{project}", str(place / "shallow"))
        monkeypatch.setattr(setup, "PROJECT", place / "shallow")
        with pytest.raises(ValueError, match="git fetch --unshallow"):
            init(place / "class")


@as_others
class TestDropBox:
    """What a learner puts there is for the instructors: by their group, or by an access list."""

    @pytest.fixture(params=[DAEMON, pytest.param(SYNC, id="access list")])
    def drop(self, place: Path, request: pytest.FixtureRequest) -> tuple[Path, pwd.struct_passwd]:
        account = pwd.getpwuid(request.param)
        if request.param == SYNC and not shutil.which("setfacl"):
            pytest.skip("no setfacl here: install the package acl")
        folder = place / "class"
        (folder / ".init").mkdir(parents=True)
        for path in (folder, folder / ".init"):
            os.chown(path, account.pw_uid, account.pw_gid)

        def make() -> None:
            os.umask(0o022)
            setup.make_drop_box(folder, "", {account})
            assert setup.make_drop_box(folder, "", {account}) == "kept"

        assert as_user(account.pw_uid, make, account.pw_gid) == ""
        return folder / "drop", account

    def test_learners_add_files_that_only_the_instructor_reads(
        self, drop: tuple[Path, pwd.struct_passwd]
    ) -> None:
        folder, account = drop
        path = folder / "alice-1.json"

        # Those with an access list share the instructor's group, and need not restrict the file.
        has_list = account.pw_uid == SYNC
        group, needed = (account.pw_gid, 0o644) if has_list else (None, 0o640)

        def send() -> None:
            os.umask(0o077)
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, needed)
            if not has_list:
                os.fchmod(handle, needed)
            os.write(handle, b"{}")

        assert as_user(ALICE, lambda: shared_progress.check_drop_box(folder.parent), group) == ""

        def read_all() -> None:
            assert os.listdir(folder) == [path.name]
            assert path.read_text() == "{}"

        assert as_user(ALICE, send, group) == ""
        assert path.exists()
        for attack in (
            lambda: os.listdir(folder),
            path.read_text,
            lambda: path.write_text("[]"),
            lambda: path.open("a"),
            path.unlink,
            lambda: path.rename(folder / "bob-1.json"),
            lambda: path.chmod(0o666),
            lambda: folder.chmod(0o777),
            lambda: folder.rename(folder.with_name("other")),
        ):
            assert "PermissionError" in as_user(BOB, attack)
            assert "PermissionError" in as_user(BOB, attack, group)
        assert as_user(account.pw_uid, read_all, account.pw_gid) == ""

    def test_a_group_with_others_needs_an_access_list(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = pwd.getpwuid(SYNC)
        monkeypatch.setattr(os, "getuid", lambda: SYNC)
        monkeypatch.setenv("PATH", str(place))  # no setfacl
        (place / ".init").mkdir()
        with pytest.raises(
            ValueError, match="setfacl failed .it is not installed.*--group NAME.*access list"
        ):
            setup.make_drop_box(place, "", {account})
        assert not (place / "drop").exists()
        assert setup._private_group("", {account}) is None

    def test_a_named_group_holds_instructors_only(self, place: Path, project: Path) -> None:
        """The same command without the group keeps the drop box."""
        folder = place / "class"
        with pytest.raises(ValueError, match="nobody.* could read what learners send.*--instruct"):
            init(folder, group="nogroup")
        with pytest.raises(ValueError, match="no group 'nogroups'"):
            init(folder, group="nogroups")
        with pytest.raises(ValueError, match="no account 'nobodies'"):
            init(folder, instructors=["nobodies"])
        assert "drop: files there can be read by daemon, root," in init(
            folder, group="daemon", instructors=["daemon"]
        )
        assert ((folder / "drop").stat().st_gid, mode(folder / "drop")) == (DAEMON, 0o3733)
        assert "drop: kept" in init(folder)
        with pytest.raises(ValueError, match="group 1.: delete it, and run this command again"):
            init(folder, group="bin", instructors=["bin"])

    def test_a_folder_of_a_private_group_is_safe(self, place: Path, project: Path) -> None:
        """As umask 002 creates them, where each account has a group of its own."""
        (place / "class").mkdir()
        for path, gid in ((place, 0), (place / "class", DAEMON)):
            os.chown(path, -1, gid)
            path.chmod(0o775)
        init(place / "class", instructors=["daemon"])

    @pytest.mark.skipif(not shutil.which("setfacl"), reason="no setfacl here")
    def test_a_folder_whose_access_list_names_others_is_refused(
        self, place: Path, project: Path
    ) -> None:
        (place / "class").mkdir()
        subprocess.run(["setfacl", "-m", f"u:{ALICE}:rwx", place / "class"], check=True)
        with pytest.raises(JobError, match="/class: .* can change it. chmod .*g-w,o-w"):
            init(place / "class")
        subprocess.run(["chmod", "g-w,o-w", place / "class"], check=True)
        init(place / "class")

    def test_a_group_of_accounts_that_are_not_listed_is_not_trusted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A directory service may answer for an account, and not list it."""
        monkeypatch.setattr(os, "getuid", lambda: SYNC)
        monkeypatch.setattr(pwd, "getpwall", list)
        assert setup._private_group("", {pwd.getpwuid(SYNC)}) is None
        monkeypatch.setattr(os, "getuid", lambda: DAEMON)
        assert setup._private_group("", {pwd.getpwuid(DAEMON)}) == DAEMON  # of the same name


@pytest.mark.parametrize("shell", SHELLS)
class TestStart:
    """start.sh, sourced by a learner."""

    @pytest.fixture
    def clone(self, place: Path, class_folder: Path) -> Path:
        """Return a learner's clone, in a folder with a name that a shell would take apart."""
        folder = place / "alice's $HOME" / "course"
        folder.parent.mkdir(mode=0o755)
        git(place, "clone", "-q", str(class_folder / "course.bundle"), str(folder))
        for path in (folder.parent, folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o022)
            if IS_ROOT:
                os.chown(path, ALICE, ALICE, follow_symlinks=False)
        return folder

    def source(self, shell: str, class_folder: Path, place: Path, umask: str = "002") -> list[str]:
        """Return what a shell prints after start.sh: its status, umask, variables and errors."""
        names = "VIRTUAL_ENV PYTHONPATH COURSE_CLASS COURSE_SITES COURSE_DATA COURSE_BOARD"
        values = [f'"${name}"' for name in f"{names} COURSE_SITE COURSE_QUICK PATH".split()]
        code = f'umask {umask}; . "$0"; printf "%s\\n" $? "$(umask)" {" ".join(values)}'
        done = subprocess.run(
            [shell, "-c", code, str(class_folder / "start.sh")],
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":relative", "CONDA_PREFIX": "/another"},
            capture_output=True,
            text=True,
            **({"user": ALICE, "group": ALICE, "extra_groups": []} if IS_ROOT else {}),
        )
        return [*done.stdout.splitlines(), done.stderr]

    @pytest.mark.parametrize(("before", "after"), [("002", "022"), ("077", "077")])
    def test_sets_the_class_up(
        self, shell: str, class_folder: Path, clone: Path, before: str, after: str
    ) -> None:
        said, status, umask, *values, errors = self.source(shell, class_folder, clone, before)
        assert said == f"The course in {clone}, site local. JupyterLab: course lab"
        assert (status, umask.lstrip("0"), errors) == ("0", after.lstrip("0"), "")
        names = ("sites.toml", "data", "board")
        environment = str(class_folder.parent / "env")
        assert values == [
            *(environment, str(clone), str(class_folder)),
            *(str(class_folder / name) for name in names),
            *("local", "1", f"{environment}/bin:/usr/bin:/bin"),
        ]

    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [
            ("cd ..", "is not the top folder of a clone"),
            ("mv course/__main__.py course/main.py", "is not the top folder of a clone"),
            ("chmod g+w course/__main__.py; chgrp 7 course/__main__.py", "could change .*__main__"),
            ("chmod o+w .git", "others could change .*/.git, so they could run code as you"),
            ("mkdir labs; chmod 757 labs; touch labs/sitecustomize.py", "others could change"),
            ("chown 54322 .", "others could change"),
            ("touch sitecustomize.py; chown 54322 sitecustomize.py", "could change .*sitecustom"),
            pytest.param(
                "chgrp 0 course/__main__.py; setfacl -m u:7:rwx course/__main__.py",
                r"others could change .* by an access list \(ACL\)",
                marks=pytest.mark.skipif(not shutil.which("setfacl"), reason="no setfacl here"),
            ),
            ("chmod 757 ..", "others can replace what is in .*, which has no sticky bit"),
            ("mv ../course ../a:b; cd ../a:b", "has a colon"),
        ],
    )
    @as_others
    def test_refuses_what_others_control_and_sets_nothing(
        self, shell: str, class_folder: Path, clone: Path, prepare: str, reason: str
    ) -> None:
        done = subprocess.run(["sh", "-c", f"{prepare}; pwd"], cwd=clone, stdout=subprocess.PIPE)
        inside = Path(os.fsdecode(done.stdout).strip())
        status, umask, *values, errors = self.source(shell, class_folder, inside)
        unset = ["", ":relative", *[""] * 6, "/usr/bin:/bin"]
        assert (status, umask.lstrip("0"), values) == ("1", "2", unset)
        assert re.search(reason, errors), errors
        assert "umask g-w,o-w && git clone '" in errors  # what to do

    @as_others
    def test_the_line_that_init_prints_makes_a_safe_clone(
        self, shell: str, class_folder: Path, place: Path
    ) -> None:
        """In the home, wherever it is typed, with a umask that lets the group write."""
        (place / "open").mkdir()  # a classmate could exchange the clone there while git works
        (place / "open").chmod(0o777)
        start, place = place / "open", place / "group"
        place.mkdir()
        place.chmod(0o3775)
        os.chown(place, ALICE, 7)
        options = {"user": ALICE, "group": ALICE, "extra_groups": [7]}
        env = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
        *_, first, _, following = init(class_folder).splitlines()
        for line, cwd in ((first, start), (following, place)):
            code = f'umask 002; {line} && printf "%s\n" "$PYTHONPATH"'
            done = subprocess.run(
                [shell, "-c", code], **options, cwd=cwd, env=env, capture_output=True, text=True
            )
            assert done.stdout.splitlines()[-1] == str(place / "course"), done.stderr
        written = [path for path in (place / "course").rglob("*") if mode(path) & 0o022]
        assert not [path for path in written if not path.is_symlink()]


def test_data_that_is_missing_is_made_by_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`course data`, for the class folder; data that is there costs nothing."""
    python = place / "python"
    python.write_text('#!/bin/sh\nmkdir "$COURSE_DATA${6:+-blind-crops}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert setup._make_data(place) == "complete"
    assert {path.name for path in place.iterdir()} == {"python", "data", "data-blind-crops"}
    assert setup._make_data(place) == "complete"  # mkdir would fail
    (place / "data").rmdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ValueError, match=f"the data could not be created in {place}"):
        setup._make_data(place)
