"""A cluster for all accounts of a machine: users run jobs as themselves, and reach only theirs."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import slurm_box
from slurm_box import cluster, control
from slurm_box.cluster import ports, programs
from slurm_box.tests.fixtures import eventually, in_cluster, slurm_says

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create accounts")


@pytest.fixture(scope="module")
def accounts() -> Iterator[list[str]]:
    """Create an operator and two users, whose homes only they can read."""
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("only root can create accounts, by useradd")
    names = [f"box{os.getpid()}{letter}" for letter in "oab"]
    try:
        for name in names:
            subprocess.run(["useradd", "-m", "-K", "HOME_MODE=0700", name], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["userdel", "-r", name], capture_output=True)


@pytest.fixture(scope="module")
def shared(own_ports: None, accounts: list[str]) -> Iterator[Path]:
    """Start a shared cluster as a root with umask 077; yield its folder, which users can enter."""
    with suppress(FileNotFoundError), tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        with in_cluster(Path(folder, "slurm"), ports()["slurmctld"] + 700):
            before = os.umask(0o077)
            try:
                slurm_box.up(shared=True, operator=accounts[0])
                yield slurm_box.folder()
            finally:
                os.umask(before)
                slurm_box.down()


def run_as(name: str, *words: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Run a command in an account's home, with nothing of this process's environment."""
    user = pwd.getpwnam(name)
    return subprocess.run(
        words,
        env={"PATH": os.environ["PATH"], **slurm_box.environment()},
        cwd=user.pw_dir,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        umask=umask,
        capture_output=True,
        text=True,
        timeout=60,
    )


def submit_as(name: str, script: str, umask: int = 0o022) -> str:
    words = ("sbatch", "--parsable", "--output=out.txt", f"--wrap={script}")
    process = run_as(name, *words, umask=umask)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def output_of(name: str) -> str:
    path = Path(pwd.getpwnam(name).pw_dir, "out.txt")
    return path.read_text() if path.exists() else ""


def is_begun(name: str) -> bool:
    return "begun" in output_of(name)


def state(number: str) -> str:
    return slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "User,State")


def is_accounted(name: str) -> bool:
    return f"{name}|RUNNING" in run_as(name, "sacct", "-nPXo", "User,State").stdout


@pytest.mark.slow
def test_users_reach_only_their_own_jobs(shared: Path, accounts: list[str]) -> None:
    operator, one, other = accounts
    script = "id -un; srun --overlap id -un; echo begun; sleep 600"
    numbers = {one: submit_as(one, script, 0o077), other: submit_as(other, script, 0o002)}
    for name in numbers:
        eventually(partial(is_begun, name), f"{name}'s job runs")
        assert output_of(name).split() == [name, name, "begun"]
        # They see why theirs waits, and nothing of the others'.
        assert run_as(name, "squeue", "-h", "-o", "%A").stdout.split() == [numbers[name]]
        eventually(partial(is_accounted, name), f"{name}'s job is in accounting, for {name} too")
    number = numbers[one]
    (spooled,) = shared.glob(f"spool/node*/job{int(number):05}/slurm_script")
    (pid, *_) = subprocess.check_output(["pgrep", "-u", one], text=True).split()
    home = pwd.getpwnam(one).pw_dir
    for words in (
        ("cat", f"{home}/out.txt"),
        ("cat", str(spooled)),
        ("cat", f"/proc/{pid}/environ"),
        ("cat", f"{shared}/munge/key"),
        *(("ls", f"{shared}/{name}") for name in ("state", "log", "database")),
        *(("touch", f"{shared}/{name}/planted") for name in ("", "munge", "run", "spool")),
        ("scontrol", "write", "batch_script", number, "-"),
        ("scontrol", "update", f"jobid={number}", "timelimit=1"),
        ("srun", f"--jobid={number}", "--overlap", "id"),
        ("sattach", f"{number}.0"),
        ("scancel", number),
        ("scontrol", "shutdown"),
        ("sacctmgr", "-i", "modify", "user", other, "set", "adminlevel=operator"),
    ):
        done = run_as(other, *words)
        assert done.returncode or "Invalid user id" in done.stderr, words
    assert state(number) == f"{one}|RUNNING"
    # A job of the shorter partition does not requeue others' jobs.
    assert {*slurm_says("sinfo", "-h", "-o", "%R %p").splitlines()} == {"gpu 1", "urgent 1"}

    seen = run_as(operator, "squeue", "-h", "-o", "%A").stdout.split()
    assert {*seen} == {*numbers.values()}
    assert run_as(operator, "scancel", number).returncode == 0
    eventually(lambda: f"{one}|CANCELLED" in state(number), "the operator has cancelled it")
    assert state(numbers[other]) == f"{other}|RUNNING"


def as_account(name: str, action: str) -> str:
    """Return what an action of the library says in a process of this account."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as file:
            return file.read()
    try:  # not by executing Python, which may be in a folder of root's
        os.setgroups([])
        os.setgid(pwd.getpwnam(name).pw_gid)
        os.setuid(pwd.getpwnam(name).pw_uid)
        actions = {
            "up": lambda: slurm_box.up()["nodes"],
            "up --shared": lambda: slurm_box.up(shared=True),
            "up --network": lambda: slurm_box.up("1gbit"),
            "down": slurm_box.down,
            "environment": slurm_box.environment,
        }
        answer = str(actions[action]())
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(writer, answer.encode())
    os._exit(0)


@pytest.mark.slow
def test_only_root_starts_and_stops_it(shared: Path, accounts: list[str]) -> None:
    name = accounts[1]
    before = {name: process.pid for name, process in programs(shared).items()}
    assert as_account(name, "up") == "2 of 2 ready"
    assert as_account(name, "environment") == str({"SLURM_CONF": str(shared / "slurm.conf")})
    refused = f"ClusterError: the cluster in {shared} is root's, who alone can start, "
    assert as_account(name, "down").startswith(refused)
    assert as_account(name, "up --network").startswith(refused)
    assert as_account(name, "up --shared").startswith("ClusterError: --shared needs root")
    assert {name: process.pid for name, process in programs(shared).items()} == before


@pytest.mark.slow
def test_it_comes_back_after_a_reboot(shared: Path, accounts: list[str]) -> None:
    """All programs are killed; `up` starts them again, for all accounts and with its operators."""
    before = submit_as(accounts[1], "echo once")
    for process in programs(shared).values():
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not programs(shared), "they are gone")
    assert slurm_box.environment() == {}
    assert slurm_box.up()["users"] == "all accounts of this machine"
    number = submit_as(accounts[2], "id -un; sleep 600")
    assert int(number) > int(before)
    eventually(lambda: accounts[2] in output_of(accounts[2]), "the job runs")
    assert run_as(accounts[0], "scancel", number).returncode == 0


@ROOT
def test_what_cannot_be_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_BOX", str(tmp_path / "slurm"))
    monkeypatch.setattr(control, "install", lambda: None)
    for action, expected in (
        (lambda: (tmp_path / "slurm").mkdir(0o755), "users cannot enter"),  # pytest's is private
        (lambda: (tmp_path / "slurm").chmod(0o777), "users can change .*slurm: choose another"),
        (lambda: os.chown(tmp_path / "slurm", 1, 1), "is .*'s, who alone can start"),
    ):
        action()
        with pytest.raises(slurm_box.ClusterError, match=expected):
            slurm_box.up(shared=True)
    with pytest.raises(slurm_box.ClusterError, match="is .*'s, who alone can start"):
        slurm_box.down()
    monkeypatch.setenv("SLURM_BOX", str(tmp_path / "other"))
    with pytest.raises(slurm_box.ClusterError, match="--operator nobody-here: no account"):
        slurm_box.up(shared=True, operator="nobody-here")
    assert not (tmp_path / "other").exists()


@ROOT
def test_a_shared_cluster_is_found_if_only_root_can_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_BOX", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "SHARED", tmp_path / "shared")
    own, shared = cluster.own_folder(), tmp_path / "shared"
    assert slurm_box.folder() == own  # there is no shared one
    shared.mkdir(mode=0o755)
    (shared / "slurm.conf").write_text("")
    assert slurm_box.folder() == shared
    for path in (shared, shared / "slurm.conf"):
        path.chmod(path.stat().st_mode | 0o020)
        assert slurm_box.folder() == own
        path.chmod(path.stat().st_mode & ~0o020)
        os.chown(path, 1, 1)
        assert slurm_box.folder() == own
        os.chown(path, 0, 0)
    shared.rename(tmp_path / "elsewhere")
    shared.symlink_to(tmp_path / "elsewhere")
    assert slurm_box.folder() == own
