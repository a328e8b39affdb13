"""A launch refuses what a different account could change of it, and nothing else."""

import grp
import json
import os
import pwd
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from classroom_helpers import make_class
from job_helpers import CONFIG, over
from race_helpers import as_user

from course.__main__ import app
from course.config import rung
from course.data import default_set
from course.jobs.launch import cancel, launch, refresh
from course.jobs.processes import of_runs
from course.runs import trust
from course.runs.errors import JobError
from course.runs.run import PROJECT, Run, all_jobs
from idr_pytools import gpu_jobs_submitter, slurm_file_creator
from labs.start_here import doctor

ME, BOB, LEARNER, CLASSMATE = os.getuid(), 42_001, 42_002, 42_003
OWN, CLASS, SYSTEM, NAMELESS = 43_000, 43_001, 50, 43_002  # groups
INSTALLED = trust._installed.__wrapped__
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


def account(name: str, uid: int, gid: int, shell: str = "/bin/sh") -> SimpleNamespace:
    return SimpleNamespace(pw_name=name, pw_uid=uid, pw_gid=gid, pw_shell=shell)


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimpleNamespace]]:
    """Replace this machine's accounts and groups: I am `me`; bob is in the class, too."""
    me = account("me", ME, OWN)
    listed = [me, account("bob", BOB, OWN + 7), account("daemon", 7, CLASS, "/usr/sbin/nologin")]
    groups = {OWN: ("me", []), CLASS: ("class", ["me", "bob"]), SYSTEM: ("staff", [])}

    def getpwuid(uid: int) -> SimpleNamespace:
        return next(x for x in [*listed, me] if x.pw_uid == uid)

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: _or_key_error(getpwuid, uid))
    monkeypatch.setattr(pwd, "getpwall", lambda: listed)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: (groups[gid][0], "x", gid, groups[gid][1]))
    monkeypatch.delenv(trust.VARIABLE)
    monkeypatch.setattr(trust, "_installed", dict)  # where the checkout is, others may write
    forget()
    yield listed
    forget()


def forget() -> None:
    """Let the accounts be looked up again."""
    for function in (trust._people, trust._owners, trust._others_in):
        function.cache_clear()


def _or_key_error(function, value):
    try:
        return function(value)
    except StopIteration:
        raise KeyError(value) from None


@pytest.fixture
def place(runs_root: Path) -> Iterator[Path]:
    """Return a folder of mine, above which no one else can write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def script(place: Path) -> Path:
    path = place / "inside" / "mine.py"
    path.parent.mkdir(mode=0o755)
    path.write_text("print('hello')")
    return path


def change(path: Path, mode: int, gid: int = OWN, uid: int = ME) -> None:
    if os.getuid() == 0:
        os.chown(path, uid, gid)
    elif (gid, uid) != (OWN, ME):
        pytest.skip("only root can give files to others")
    path.chmod(mode)


def found(*scripts: Path, **options) -> list[tuple[str, str, bool]]:
    return [(x.path.name, x.writers, x.is_certain) for x in trust.openings(scripts, **options)]


@needs_root
@pytest.mark.parametrize(
    ("mode", "gid", "uid", "writers"),
    [
        (0o664, OWN, ME, ""),  # umask 002, and a group of one's own
        (0o644, CLASS, ME, ""),
        (0o664, CLASS, ME, "group class (bob)"),
        (0o664, SYSTEM, ME, ""),
        (0o666, OWN, ME, "everyone on this machine"),
        (0o644, OWN, BOB, "bob, its owner,"),
        (0o664, CLASS, CLASSMATE, f"user {CLASSMATE}, its owner, and group class (bob)"),
    ],
)
def test_who_can_change_a_script(script: Path, mode: int, gid: int, uid: int, writers: str) -> None:
    change(script, mode, gid, uid)
    assert found(script) == ([("mine.py", writers, True)] if writers else [])


@needs_root
def test_a_folder_counts_unless_its_sticky_bit_protects_what_is_in_it(script: Path) -> None:
    change(script.parent, 0o775, CLASS)
    assert found(script) == [("inside", "group class (bob)", True)]
    script.parent.chmod(0o1775)
    assert found(script) == []
    assert found(folders=[script.parent]) == [("inside", "group class (bob)", True)]  # imports
    link = script.parent.with_name("link.py")
    script.parent.chmod(0o775)
    link.symlink_to("inside/mine.py")
    assert found(link) == [("inside", "group class (bob)", True)]


@needs_root
def test_a_temporary_folder_in_which_others_can_replace_the_queue_is_refused(
    script: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets of the queue name the program that starts, also long after the launch."""
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    (place / "tmp").mkdir()
    change(place / "tmp", 0o2775, CLASS)
    assert found(script) == [("tmp", "group class (bob)", True)]
    os.chown(place / "tmp", BOB, CLASS)
    with pytest.raises(JobError, match="tmp: group class .bob. can .*export TMPDIR=FOLDER"):
        trust.check([script])
    change(place / "tmp", 0o3775, CLASS)
    assert found(script) == []
    change(place / "tmp", 0o2775, CLASS)  # now only of the compiler's cache
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "tmp" / "me"))
    assert found(script) == [("tmp", "group class (bob)", True)]


@needs_root
def test_members_that_a_directory_does_not_list_may_be_anyone(
    script: Path, accounts: list[SimpleNamespace]
) -> None:
    change(script, 0o664, NAMELESS)
    assert found(script) == []
    accounts.clear()  # I have a name, and am not listed: so may others be
    forget()
    words = f"group {NAMELESS}, whose members are not listed here,"
    assert found(script) == [("mine.py", words, True)]
    change(script, 0o664, OWN)  # it has my name
    assert found(script) == []


@needs_root
def test_on_a_machine_of_one_person_the_doctor_only_notes_it(
    script: Path, accounts: list[SimpleNamespace]
) -> None:
    """As in a container, whose checkout everyone may write."""
    del accounts[1]
    change(script, 0o666)
    assert found(script) == [("mine.py", "everyone on this machine", False)]
    assert trust.check([script]) == []


@needs_root
def test_owners_of_the_environment_and_of_the_chosen_class_are_trusted(
    script: Path, place: Path, monkeypatch: pytest.MonkeyPatch, user_sites: Path
) -> None:
    sites = place / "sites.toml"
    sites.write_text("")
    monkeypatch.setenv("COURSE_SITES", str(sites))
    change(sites, 0o644, uid=BOB)
    assert found() == [("sites.toml", "bob, its owner,", True)]
    folder = place / "class"
    folder.mkdir()
    change(folder, 0o755, uid=BOB)
    monkeypatch.setenv("COURSE_CLASS", str(folder))
    assert found() == []
    change(sites, 0o664, CLASS, BOB)
    assert found() == []  # only bob is in it
    monkeypatch.delenv("COURSE_CLASS")
    change(script.parent, 0o755, uid=BOB)  # a folder above what I chose: noted
    change(sites, 0o644)
    assert found(script) == [("inside", "bob, its owner,", False)]


@needs_root
def test_a_relative_link_leads_from_where_its_folder_really_is(script: Path, place: Path) -> None:
    (place / "far" / "project").mkdir(parents=True)
    (place / "far" / "lib.py").write_text("")
    (place / "far" / "project" / "mine.py").symlink_to("../lib.py")
    (place / "near").symlink_to("far/project")
    change(place / "far" / "lib.py", 0o664, CLASS)
    assert found(place / "near" / "mine.py") == [("lib.py", "group class (bob)", True)]


@needs_root
def test_an_access_control_list_gives_the_groups_permission_to_others(script: Path) -> None:
    def allow(*entries: tuple[int, int, int]) -> None:
        data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(script, "system.posix_acl_access", data)
        except OSError as error:
            pytest.skip(f"this disk has no access control lists: {error}")

    none = 2**32 - 1
    change(script, 0o644, CLASS)
    allow((1, 6, none), (2, 6, BOB), (4, 4, none), (16, 6, none), (32, 4, none))
    assert script.stat().st_mode & 0o020  # the mask, not what the group may
    assert found(script) == [("mine.py", "bob", True)]
    allow((1, 6, none), (2, 6, ME), (4, 4, none), (8, 6, OWN), (16, 6, none), (32, 4, none))
    assert found(script) == []
    script.chmod(0o644)  # what the message recommends closes the list's mask
    allow((1, 6, none), (2, 6, BOB), (4, 4, none), (16, 4, none), (32, 4, none))
    assert found(script) == []


@needs_root
@pytest.mark.skipif(not shutil.which("setfacl"), reason="no setfacl here")
def test_a_default_access_list_opens_what_will_be_created(script: Path) -> None:
    change(script.parent, 0o755)
    subprocess.run(["setfacl", "-d", "-m", f"u:{BOB}:rwx", script.parent], check=True)
    assert found(folders=[script.parent]) == [("inside", "bob, by its default ACL,", True)]
    (opening,) = trust.openings(folders=[script.parent])
    subprocess.run(opening.fix, shell=True, check=True)
    assert found(folders=[script.parent]) == []


@needs_root
def test_a_launch_refuses_names_the_fix_and_records_what_was_trusted(
    script: Path, place: Path, monkeypatch: pytest.MonkeyPatch, runs_root: Path
) -> None:
    change(script, 0o664, CLASS)
    with pytest.raises(JobError) as error:
        launch(script, CONFIG)
    for words in (
        f"{script}: group class (bob) can change it. chmod g-w,o-w {script}",
        f"--trust-folder {script}",
        f"os.environ['COURSE_TRUST'] = '{script}'",
    ):
        assert words in str(error.value)
    assert not [*runs_root.glob("baseline*")]
    monkeypatch.setenv(trust.VARIABLE, str(place / "missing"))
    with pytest.raises(ValueError, match="COURSE_TRUST: .* does not exist"):
        launch(script, CONFIG)
    link = place.parent / f"{place.name}-link"
    link.symlink_to(place)  # as a disk has several names
    monkeypatch.setenv(trust.VARIABLE, str(link / "inside"))
    link_was_followed = trust.check([script])
    link.unlink()
    assert link_was_followed
    monkeypatch.setenv(trust.VARIABLE, str(script.parent))
    run = over(launch(script, CONFIG))
    assert run.launched["trusted"] == [f"{script}: group class (bob) can change it"]
    change(script, 0o644)
    assert "trusted" not in over(launch(script, CONFIG, rerun=True)).launched


@needs_root
def test_what_an_own_script_could_import_counts_too(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(script.parent, 0o1777)
    launch(script, CONFIG).cancel()  # it is copied, and its folder is sticky
    with pytest.raises(JobError, match="inside: everyone on this machine can change it"):
        launch(script, CONFIG, arguments=["--lr", "1"])
    change(script.parent, 0o755)
    for name in ("nets.py", "blocks/__init__.py", "blocks/x.so", "__pycache__/nets.pyc"):
        module = script.parent / name
        module.parent.mkdir(exist_ok=True)
        module.touch()
        change(module, 0o664, CLASS)
        with pytest.raises(JobError, match=rf"{name}: group class \(bob\) can change it"):
            launch(script, CONFIG, arguments=["--lr", "1"])
        with pytest.raises(JobError, match=rf"{name}: group class \(bob\) can change it"):
            gpu_jobs_submitter(str(script), n_gpu=1)
        change(module, 0o644)
    earlier = over(launch(script, CONFIG, arguments=["--lr", "1"]))
    change(script.parent, 0o1777)  # afterwards: it is repeated beside another run
    with pytest.raises(JobError, match="inside: everyone on this machine can change it"):
        launch("solutions/train.py", rung("amp", quick=True), against=earlier)
    change(script.parent, 0o755)
    change(tmp_path, 0o1777)
    monkeypatch.chdir(tmp_path)  # its child processes can import from there
    with pytest.raises(JobError, match=f"{tmp_path}: everyone on this machine can change it"):
        launch(script, CONFIG, arguments=["--lr", "1"])


@needs_root
def test_what_jobs_of_idr_pytools_execute_counts_too(
    script: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PROJECT", str(script.parent))
    (place / "run.sh").touch()
    logs = place / "slurm"
    logs.mkdir()
    for path, command in (
        (script, "$PROJECT/mine.py"),
        (place / "run.sh", "bash run.sh"),
        (logs, "python -V"),  # there, a link leads what is written elsewhere
    ):
        change(path, 0o775, CLASS)
        for submit in (gpu_jobs_submitter, slurm_file_creator):
            with pytest.raises(JobError, match=rf"{path.name}: group class \(bob\) can change it"):
                submit(command)
        change(path, 0o755)
    assert not [*logs.iterdir()]


@needs_root
def test_a_repetition_needs_the_folders_it_imported_from(script: Path) -> None:
    """On a scratch disk, others can create one that is gone, before the job begins."""
    earlier = over(launch(script, CONFIG, arguments=[]))
    shutil.rmtree(script.parent)
    with pytest.raises(ValueError, match=f"{script.parent}: gone, and the run to repeat"):
        launch("solutions/train.py", rung("amp", quick=True), against=earlier)


@needs_root
def test_data_is_not_written_where_others_could_lead_it_elsewhere(place: Path) -> None:
    private, folder = place / "private", place / "group"
    private.mkdir()
    folder.mkdir()
    change(folder, 0o2775, CLASS)
    (folder / "set.partial").symlink_to(private)
    with pytest.raises(JobError, match=r"group: group class \(bob\) can change it"):
        default_set.ensure(folder / "set")
    assert not [*private.iterdir()] and not (folder / "set").exists()
    change(folder, 0o1777)
    for name in ("set.partial", "set"):  # theirs, moved there with what others have stored in it
        (folder / "set.partial").unlink(missing_ok=True)
        theirs = folder / name
        theirs.mkdir()
        (theirs / "manifest.json").write_text('{"recipe": 1}')
        change(theirs, 0o777, uid=BOB)
        with pytest.raises(JobError, match=f"{name}: bob, its owner, and everyone"):
            default_set.ensure(folder / "set")
        assert (theirs / "manifest.json").exists()
        shutil.rmtree(theirs)


@needs_root
def test_a_queued_job_in_a_shared_runs_folder_is_refused(
    script: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, classmates could replace the script before its turn, or what submitit stored."""
    runs_root.mkdir()
    change(runs_root, 0o2775, CLASS)
    with pytest.raises(JobError, match=r"runs: group class \(bob\) can change it"):
        launch(script, CONFIG)
    fix = f"chmod -R g-w,o-w {runs_root}"
    assert doctor.trust() == ("fail", f"{runs_root}: group class (bob) can change it", fix)
    monkeypatch.setenv(trust.VARIABLE, str(runs_root))
    assert doctor.trust()[0] == "note"
    runs_root.chmod(0o755)
    assert doctor.trust()[0] == "ok"


COMMANDS = """runs; queue; progress; logs x; show x; cancel --all; compare x y; race; class leave
ladder --picture --full --site recorded-nvidia-h100; check amp --script solutions/train.py; help why
class join --yes CLASS; notebooks day0_2*; run solutions/train.py --quick""".replace("\n", "; ")


@needs_root
@pytest.mark.parametrize("command", COMMANDS.split("; "))
def test_no_command_looks_into_a_runs_folder_that_others_can_change(
    command: str, runs_root: Path, tmp_path: Path
) -> None:
    """Links, pipes and a class.json of theirs would act as the user; one file of each is there."""
    mine = tmp_path / "thesis.tex"
    mine.write_text("mine")
    (runs_root / "variants").mkdir(parents=True)
    (runs_root / "ladder.png").symlink_to(mine)
    os.mkfifo(runs_root / "progress.json")
    before = sorted(runs_root.iterdir())
    change(runs_root, 0o2775, CLASS)
    words = command.replace("CLASS", str(make_class(tmp_path / "class"))).split()
    with pytest.raises(JobError) as error:
        app(words, standalone_mode=False)
    for said in (
        f"{runs_root}: group class (bob) can change it. chmod -R g-w,o-w {runs_root}",
        "export COURSE_RUNS=FOLDER",
        f"os.environ['COURSE_TRUST'] = '{runs_root}'",
    ):
        assert said in str(error.value)
    assert mine.read_text() == "mine" and sorted(runs_root.iterdir()) == before


@needs_root
@pytest.mark.parametrize(
    ("mode", "gid", "uid", "writers"),
    [
        (0o2775, OWN, ME, ""),  # umask 002, and a group of one's own
        (0o3775, CLASS, ME, "group class (bob)"),  # they can add a class.json
        (0o777, OWN, ME, "everyone on this machine"),
        (0o755, OWN, BOB, "bob, its owner,"),
        (0o755, OWN, trust.HIDDEN, ""),  # of everything, as on a disk of NFS for root
    ],
)
@pytest.mark.parametrize("inside", ["", "mine"])  # left from when the folder was open
def test_whose_runs_folder_is_refused(
    runs_root: Path, inside: str, mode: int, gid: int, uid: int, writers: str
) -> None:
    (runs_root / inside).mkdir(parents=True)
    change(runs_root / inside, mode, gid, uid)
    if writers:
        with pytest.raises(JobError, match=re.escape(f"{runs_root / inside}: {writers} can")):
            all_jobs()
        change(runs_root / inside, 0o755)  # in the same process, as after the fix
    assert all_jobs() == []


@needs_root
def test_a_runs_folder_that_others_can_exchange_is_refused(
    runs_root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a project's folder on a cluster, of which the learner cannot change the mode."""
    (project := place / "project").mkdir()
    monkeypatch.setenv("COURSE_RUNS", str(project / "me"))
    for _ in range(2):  # before it exists, and then
        change(project, 0o2770, CLASS, 0)
        with pytest.raises(JobError, match=r"project: group class .*\n.*export COURSE_RUNS=FOLDER"):
            all_jobs()
        project.chmod(0o3770)
        assert all_jobs() == []
        (project / "me").mkdir(exist_ok=True)
    (place / "link").symlink_to(project / "me")
    change(place, 0o775, CLASS)
    (runs_root.parent / "link").symlink_to(place / "link")
    monkeypatch.setenv("COURSE_RUNS", str(runs_root.parent / "link"))
    with pytest.raises(JobError, match=f"{place}: group class"):
        all_jobs()


@needs_root
def test_a_folder_above_that_a_classmate_may_have_created_is_refused(
    script: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a scratch disk, who takes your name first can exchange your runs while a job waits."""
    (mine := place / "me").mkdir()
    change(mine, 0o1777, uid=BOB)
    monkeypatch.setenv("COURSE_RUNS", str(mine / "runs"))
    assert all_jobs() == []  # no one else could, as in a project's folder of administrators
    place.chmod(0o1777)
    refused = r"me: bob, its owner, can change it\. Use one of your own"
    for act in (all_jobs, lambda: launch(script, CONFIG)):
        with pytest.raises(JobError, match=refused):
            act()


@needs_root
def test_many_names_in_an_open_folder_make_a_short_message(runs_root: Path) -> None:
    for number in range(50):
        (runs_root / f"theirs-{number:02}").mkdir(parents=True)
        os.chown(runs_root / f"theirs-{number:02}", BOB, OWN)
    with pytest.raises(JobError, match="theirs-09: bob.*\n  … and 40 more"):
        all_jobs()


@needs_root
def test_the_doctor_reports_an_open_runs_folder_and_goes_on(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_root.mkdir()
    change(runs_root, 0o2775, CLASS)
    checks = {check.name: check for check in doctor.examine(job=False)}
    assert checks["trust"].status == "fail" and "chmod -R g-w,o-w" in checks["trust"].fix
    assert {checks[name].status for name in ("disk", "write_access")} == {"ok"}


@needs_root
def test_runs_of_someone_else_are_read_if_the_user_trusts_them(
    runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an instructor looks at a learner's. Nothing is ended, whatever is written there."""
    mine = subprocess.Popen(["sleep", "60"], start_new_session=True)
    (run := Run(runs_root / "theirs")).folder.mkdir(parents=True)
    (run.folder / "launch.json").write_text(json.dumps({"executor": "local"}))
    (run.folder / "config.json").write_text(CONFIG.to_json())
    (run.folder / "started.json").write_text(json.dumps({"processes": [[mine.pid, 1]]}))
    for path in (run.folder, runs_root):
        os.chown(path, BOB, BOB)
    monkeypatch.setenv(trust.VARIABLE, str(runs_root))
    assert all_jobs() == [run] and refresh(run) == "running"
    cancel([run])
    os.chown(run.folder, ME, OWN)
    assert mine.poll() is None and len(of_runs(run)) == 1
    (link := runs_root / "link").symlink_to(run.folder)
    os.chown(link, BOB, BOB, follow_symlinks=False)
    assert not of_runs(Run(link))
    mine.kill()
    mine.wait()


def test_all_that_commands_start_python_from_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = []
    monkeypatch.setattr(trust, "_openings", lambda paths, **_: examined.extend(map(str, paths)))
    INSTALLED()
    site_packages = sysconfig.get_path("purelib")
    for path in ("course/jobs", "labs/start_here", "exercises", "notebooks", ".git", ""):
        assert str(PROJECT / path) in examined
    assert {sys.executable, os.path.dirname(sys.executable), site_packages} < {*examined}
    assert len(examined) < 1000  # not each file of the environment


@needs_root
def test_another_account_is_refused_where_a_classmate_wrote_the_sites() -> None:
    """With real accounts."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o1777)
    mine, sites = place / "mine.py", place / "sites.toml"

    def write() -> None:
        sites.write_text('[local]\nexecutor = "local"\n')

    def refused() -> None:
        os.environ |= {"COURSE_SITES": str(sites), "COURSE_RUNS": str(place / "runs")}
        mine.write_text("print(1)")
        with pytest.raises(JobError, match="sites.toml: user 42003, its owner, can change it"):
            launch(mine, CONFIG)

    try:
        assert as_user(CLASSMATE, write) == ""
        assert as_user(LEARNER, refused) == ""
    finally:
        shutil.rmtree(place)
