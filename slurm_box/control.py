"""A real Slurm on this one machine, for learners without a cluster, and for tests.

munged, MariaDB, slurmdbd, slurmctld and two slurmd run as this user in a separate folder (as root,
if all accounts share the cluster: then jobs run as their submitters),
on loopback and on separate ports, so an existing Slurm is not touched. (Slurm's accounting daemon
cannot listen only on loopback; it rejects every request without the key in that folder.)
Each of the two nodes claims 16 cores and four GPUs: the devices are fake, the scheduler is not.
With a network (`slurm_box.network`), slurmctld and slurmd use its addresses, not loopback.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from slurm_box.cluster import (
    NODES,
    SHARED,
    ClusterError,
    folder,
    own_folder,
    ports,
    programs,
    which,
)
from slurm_box.installation import LOOPBACK, Daemon, daemons, install, write_files
from slurm_box.network import Network

UP_S = 120  # time limit until the nodes are idle
DOWN_S = 15  # until the jobs end; Slurm kills those that ignore it after KillWait
RELEASED_S = 5  # until the port of a killed program is free


def up(rate: str = "", *, shared: bool = False, operator: str = "") -> dict[str, str]:
    """Start all programs of the cluster that are not running, and wait until its nodes are idle.

    Missing programs are installed first if possible (as root, on Debian).

    Args:
        rate: of a network between the nodes, such as "1gbit"; "" for none, or to keep the network
            that the cluster has.
        shared: let all accounts of this machine submit jobs, which run as their submitters. Only
            root can do this; if a different user's cluster runs, `up` needs nothing.
        operator: an account that may see and cancel all jobs of a shared cluster, in addition to
            earlier ones; by default the one that called sudo.

    Returns:
        What `status` returns.

    Raises:
        ClusterError: something is missing, a port is taken, a program does not start, or the
            network cannot be created; or the cluster is a different user's.
    """
    home = _folder_to_start(shared)
    if not rate and not shared and not _is_mine(home) and programs(home):
        return status()
    _check_owner(home)
    shared = shared or _is_shared(home)
    operator = operator or (os.environ.get("SUDO_USER", "") if shared else "")
    if operator == "root":
        operator = ""  # root may do more already
    _check_operator(operator)
    install()
    with _umask(0o022 if shared else 0o077):
        if shared:
            _check_place(home)
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home):
            _start_all(home, rate, shared, operator)
    return status()


def _start_all(home: Path, rate: str, shared: bool, operator: str) -> None:
    """Start what does not run; if something fails, end what was started."""
    before, network = programs(home), Network(home)
    if not before and not rate:
        network.remove()  # left by a crash
    had_network = network.exists
    if rate and before and not had_network:
        raise ClusterError(
            "--network: the cluster runs without a network: run python -m slurm_box down first"
        )
    try:
        if rate:
            network.create(rate)
        elif had_network:
            network.connect()
        addresses = network.addresses if network.exists else LOOPBACK
        if "slurmctld" not in before:
            write_files(home, addresses, shared)
            network.write_hosts()
        for daemon in daemons(home, addresses):
            if daemon.name not in before:
                entry = network.entry(daemon.name) if network.exists else []
                _start(daemon, home, entry)
        _wait(lambda: "" if _nodes_are_ready(home) else "not idle", "the nodes", home)
        _release_failed_launches(home)
        if operator:
            _make_operator(home, operator)
    except BaseException:  # also an interrupt: leave nothing half started
        for name in set(programs(home)) - set(before):
            _end(programs(home)[name])
        if not had_network:
            network.remove()
        raise


def down() -> list[str]:
    """End every program of the cluster, and its jobs; return the programs that ended.

    Raises:
        ClusterError: the cluster is a different user's.
    """
    home, ended = folder(), []
    _check_owner(home)
    _cancel_jobs(home)
    for daemon in reversed(daemons(home)):
        if process := programs(home).get(daemon.name):
            ended.append(daemon.name)
            _end(process)
    _end(*_strays(home), timeout_s=3)  # slurmstepd ignores SIGTERM
    Network(home).remove()
    return ended


def _cancel_jobs(home: Path) -> None:
    """End all jobs the usual way, so that accounting records it, if the controller answers."""
    deadline = time.monotonic() + DOWN_S
    while "slurmctld" in programs(home) and time.monotonic() < deadline:
        if not (jobs := (_output(home, "squeue", "-h", "-o", "%A") or "").split()):
            return
        _output(home, "scancel", *jobs)
        time.sleep(0.2)


def status() -> dict[str, str]:
    """Return the state of each program, and how many nodes accept jobs."""
    home = folder()
    running = programs(home)
    states = {
        daemon.name: "running" if daemon.name in running else "not running"
        for daemon in daemons(home)
    }
    ready = _ready(home) if "slurmctld" in running else 0
    network = Network(home)
    link = {"network": network.status()} if network.exists else {}
    users = {"users": "all accounts of this machine"} if _is_shared(home) else {}
    nodes = f"{ready} of {len(NODES)} ready"
    return {**states, "nodes": nodes, **link, **users, "folder": str(home)}


def _folder_to_start(shared: bool) -> Path:
    if os.geteuid() != 0:
        if shared:
            raise ClusterError("--shared needs root, who starts jobs as their submitters: use sudo")
        return folder()
    return SHARED if shared and not os.environ.get("SLURM_BOX") else own_folder()


def _is_mine(home: Path) -> bool:
    return not home.exists() or home.stat().st_uid == os.geteuid()


def _is_shared(home: Path) -> bool:
    return (home / "shared").exists()


def _check_owner(home: Path) -> None:
    if not _is_mine(home):
        raise ClusterError(
            f"the cluster in {home} is {_name(home.stat().st_uid)}'s, who alone can start, change "
            f"or stop it. For one of your own, set SLURM_BOX=FOLDER and SLURM_BOX_PORT=NUMBER"
        )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _check_operator(name: str) -> None:
    try:
        _ = name and pwd.getpwnam(name)
    except KeyError:
        raise ClusterError(f"--operator {name}: no account of this machine has this name") from None


def _check_place(home: Path) -> None:
    """Check that a folder can have a cluster for all accounts.

    Raises:
        ClusterError: a cluster for root only runs in it; others can change it, and would run
            programs as root; or others cannot enter it.
    """
    if programs(home) and not _is_shared(home):
        raise ClusterError("--shared: the cluster runs for root only: run slurm_box down first")
    for path in filter(Path.exists, (home, *home.parents)):
        state = path.stat()
        is_sticky = path != home and state.st_mode & 0o1000
        if state.st_uid != 0 or (state.st_mode & 0o022 and not is_sticky):
            raise ClusterError(f"--shared: users can change {path}: choose another SLURM_BOX")
        if path != home and not state.st_mode & 0o001:
            raise ClusterError(f"--shared: users cannot enter {path}: choose another SLURM_BOX")


def _make_operator(home: Path, name: str) -> None:
    """Let an account see and cancel all jobs; Slurm wants it to have an account to charge, too."""
    words = ("sacctmgr", "--immediate")
    _output(home, *words, "add", "user", name, "account=root")  # fails if it is known
    _output(home, *words, "modify", "user", name, "set", "adminlevel=operator")
    known = _output(home, "sacctmgr", "-nP", "show", "user", name, "format=adminlevel") or ""
    if known.strip() != "Operator":
        raise ClusterError(f"--operator {name}: Slurm's accounting did not accept it: try again")


def _is_taken(daemon: Daemon) -> bool:
    """Return whether a different program uses the port, longer than one that was just killed."""
    deadline = time.monotonic() + RELEASED_S
    while daemon.answers():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def _start(daemon: Daemon, home: Path, entry: Sequence[str] = ()) -> None:
    """Start a program in a separate session, and wait until it answers.

    Args:
        entry: words before its command, which take it into a network.
    """
    if daemon.socket:
        daemon.socket.unlink(missing_ok=True)  # one left by a crash would look like an answer
    elif _is_taken(daemon):
        port = ports()[daemon.name]
        raise ClusterError(
            f"port {port} is taken by another program, and {daemon.name} needs it: "
            f"end that, or choose different ports with SLURM_BOX_PORT=NUMBER"
        )
    program, *arguments = daemon.command
    variables = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "USER", "LANG", "TZ")
        if name in os.environ
    }
    # No other variables, because a notebook's variables could affect a service.
    env = {
        **variables,
        "SLURM_CONF": str(home / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(home / "database" / "socket"),
    }
    with (home / "log" / f"{daemon.name}.out").open("w") as output:
        process = subprocess.Popen(
            [*entry, which(program), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home,
        )
    created = psutil.Process(process.pid).create_time()
    (home / "run" / f"{daemon.name}.pid").write_text(f"{process.pid} {created}")
    _wait(lambda: daemon.obstacle() if process.poll() is None else "", daemon.name, home)
    if process.poll() is not None:
        raise ClusterError(f"{daemon.name} ended at once:\n{_last_words(home, daemon.name)}")


def _wait(obstacle: Callable[[], str], name: str, home: Path) -> None:
    """Wait until there is no obstacle; raise ClusterError with the last one after UP_S."""
    deadline = time.monotonic() + UP_S
    while reason := obstacle():
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} did not start within {UP_S} s ({reason}); see the logs in "
                f"{home / 'log'}\n{_last_words(home, name)}"
            )
        time.sleep(0.1)


def _last_words(home: Path, name: str) -> str:
    output = home / "log" / f"{name}.out"
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
    return "\n".join(lines[-8:])


def _strays(home: Path) -> list[psutil.Process]:
    """Return processes that jobs left behind: steps with a socket in this folder, and commands."""
    conf, strays = str(home / "slurm.conf"), []
    for process in psutil.process_iter():
        try:
            if process.name() == "slurmstepd":
                addresses = (
                    str(connection.laddr) for connection in process.net_connections("unix")
                )
                ours = any(address.startswith(f"{home}/") for address in addresses)
            else:
                variables = process.environ()
                ours = "SLURM_JOB_ID" in variables and variables.get("SLURM_CONF") == conf
        except psutil.Error:
            continue
        strays += [process] if ours else []
    return strays


def _end(*processes: psutil.Process, timeout_s: float = 10) -> None:
    """Terminate processes with their children, and kill those that have not ended in time."""
    ending = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            ending += [process, *process.children(recursive=True)]
            process.terminate()
    for process in psutil.wait_procs(ending, timeout=timeout_s)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    try:
        with FileLock(home / ".lock", timeout=UP_S, mode=0o600):  # or any user could hold it
            yield
    except Timeout as error:
        raise ClusterError(
            f"another process is starting the cluster in {home}: try again"
        ) from error


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _nodes_are_ready(home: Path) -> bool:
    """Return whether all nodes accept jobs with GPUs, and resume those that are drained.

    A controller that was killed during a job drains its nodes.
    """
    for line in (_output(home, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T") or "").splitlines():
        node, state = line.split()
        if state.startswith(("drain", "down")):
            _output(home, "scontrol", "update", f"nodename={node}", "state=resume")
    # The answer to a ping makes a node idle, perhaps before its registration brings the controller
    # the GPUs' devices: a job that starts then gets none.
    nodes = _output(home, "scontrol", "--oneliner", "show", "node") or "SlurmdStartTime=None"
    return _ready(home) == len(NODES) and "SlurmdStartTime=None" not in nodes


def _release_failed_launches(home: Path) -> None:
    """Release jobs that Slurm holds because their start failed, as when its controller ended then.

    Slurm does not release them itself. It starts them two minutes after the failure or later.
    """
    for line in (_output(home, "squeue", "-h", "-o", "%i %r") or "").splitlines():
        number, reason = line.split(maxsplit=1)
        if reason == "launch failed requeued held":
            _output(home, "scontrol", "release", number)


def _ready(home: Path) -> int:
    """Return how many nodes accept jobs according to Slurm's controller; 0 without an answer."""
    states = _output(home, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%T") or ""
    # A node whose job has just ended is "completing": its other cores accept jobs.
    accepting = ("idle", "mixed", "allocated", "completing")
    return sum(state in accepting for state in states.split())


def _output(home: Path, *command: str) -> str | None:
    """Return what one of Slurm's commands prints; None if it fails or nothing answers."""
    env = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    try:
        process = subprocess.run(command, env=env, timeout=10, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None
