"""What a Slurm on one machine needs before it starts: its programs, and its files."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from filelock import FileLock

from course.jobs.errors import JobError
from course.jobs.own_slurm import which

PACKAGES = (
    "munge",
    "mariadb-server-core",
    "mariadb-client-core",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "slurm-client",
)
PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "my_print_defaults",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sinfo",
    "sbatch",
    "srun",
    "sacct",
)
NODES, GPUS = ("node1", "node2"), 4  # GPUs of each node
FIRST_PORT = 16817  # of seven; COURSE_SLURM_PORT names another, say for two people on one machine
JOBS_A_START, MOST_JOBS = 10_000, 60_000_000  # Slurm itself begins anew after 67 million
TEMPLATES = Path(__file__).with_name("slurm_conf")
PROLOG = "task_prolog.sh"


class ClusterError(JobError):
    """The cluster cannot be started; the message says what is missing, and what to do."""


def ports() -> dict[str, int]:
    """The port of each program that has one, all on loopback.

    Raises:
        ClusterError: COURSE_SLURM_PORT is no port.
    """
    given = os.environ.get("COURSE_SLURM_PORT", str(FIRST_PORT))
    if not given.isdecimal() or not 1024 <= int(given) <= 65530:
        raise ClusterError(f"COURSE_SLURM_PORT={given!r}: it must be a number, 1024 to 65530")
    names = ("slurmctld", "slurmdbd", *NODES)
    return {name: int(given) + 2 * place for place, name in enumerate(names)}


def missing() -> list[str]:
    """The programs that a cluster needs and this machine does not have."""
    return [name for name in PROGRAMS if not which(name)]


def install() -> None:
    """Install what is missing, without starting any service.

    Raises:
        ClusterError: that takes root, or Debian, or it did not work.
    """
    lacking = missing()
    if not lacking:
        return
    wanted = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise ClusterError(
            f"not installed: {', '.join(lacking)}. On Debian or Ubuntu, run as root: {wanted}"
        )
    with FileLock("/run/lock/course-slurm-install.lock"):  # two at once would meet at dpkg's own
        if missing():
            _install_packages(wanted)


def _install_packages(wanted: str) -> None:
    print(f"Installing {', '.join(PACKAGES)} …", file=sys.stderr)
    blocker = Path("/usr/sbin/policy-rc.d")  # or Debian would start services of its own
    created = not blocker.exists()
    if created:
        blocker.write_text("#!/bin/sh\nexit 101\n")
        blocker.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=env, check=False, capture_output=True)
        done = subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
            env=env,
            capture_output=True,
            text=True,
        )
    finally:
        if created:
            blocker.unlink()
    if still := missing():
        raise ClusterError(f"{wanted} did not bring {', '.join(still)}:\n{done.stderr[-800:]}")


def _first_job(conf: Path) -> int:
    """The first job id of this start: each has a block of its own, lest ids be given twice.

    A controller that was killed may have lost its count, and would begin again with ids that
    accounting knows already. Clusters of one machine begin apart, as their ports do: scripts derive
    a port of their own from the id.
    """
    last = re.search(r"^FirstJobId=(\d+)", conf.read_text(), re.M) if conf.exists() else None
    if last:
        return (int(last[1]) + JOBS_A_START) % MOST_JOBS
    return 1 + 97 * ports()["slurmctld"] % JOBS_A_START


def write_files(home: Path) -> None:
    """Make the cluster's folder: configuration anew, keys and the database once.

    Raises:
        ClusterError: the database could not be made.
    """
    for name in ("munge", "database", "log", "run", "spool", "state"):
        (home / name).mkdir(exist_ok=True, mode=0o700)
    for number in range(GPUS):  # Slurm wants devices: each is a name for one that is always there
        link = home / f"gpu{number}"
        if not link.is_symlink():
            link.symlink_to("/dev/null")
    key = home / "munge" / "key"
    if not key.exists():
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
    values = {
        "home": home,
        "user": getpass.getuser(),
        "host": socket.gethostname().split(".")[0],
        "last_gpu": GPUS - 1,
        "gpus": GPUS,
        "first_job": _first_job(home / "slurm.conf"),
        **ports(),
    }
    for template in TEMPLATES.glob("*.conf"):
        target = home / template.name
        target.write_text(Template(template.read_text()).substitute(values))
        target.chmod(0o600 if template.stem == "slurmdbd" else 0o644)
    shutil.copy(TEMPLATES / PROLOG, home)
    (home / PROLOG).chmod(0o755)
    if not (home / "database" / "mysql").exists():
        _make_database(home / "database")


def _make_database(folder: Path) -> None:
    command = [
        which("mariadb-install-db"),
        "--no-defaults",
        f"--user={getpass.getuser()}",
        f"--datadir={folder}",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder)
        raise ClusterError(f"MariaDB's folder could not be made:\n{done.stderr[-800:]}")


@dataclass(frozen=True)
class Daemon:
    """A program of the cluster: its name here, its command, and where it answers."""

    name: str
    command: list[str]
    socket: Path | None = None  # None: at its port on loopback

    def answers(self) -> bool:
        return self.socket.exists() if self.socket else listens(ports()[self.name])


def listens(port: int) -> bool:
    """Does a program answer at this port of loopback?"""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def daemons(home: Path) -> list[Daemon]:
    """In the order in which they need each other. Each stays in the foreground of its session."""
    munge, database = home / "munge" / "socket", home / "run" / "database.sock"
    munged = [
        "munged",
        "--foreground",
        "--force",
        f"--socket={munge}",
        f"--key-file={home}/munge/key",
        f"--seed-file={home}/munge/seed",
        f"--pid-file={home}/run/munged.own.pid",
        f"--log-file={home}/log/munged.log",
    ]
    # Without a network it is reached by its socket alone, which lies in this user's folder.
    mariadbd = [
        "mariadbd",
        "--no-defaults",
        f"--user={getpass.getuser()}",
        f"--datadir={home}/database",
        f"--socket={database}",
        "--skip-networking",
        "--skip-grant-tables",
        "--innodb-buffer-pool-size=64M",
    ]
    return [
        Daemon("munged", munged, munge),
        Daemon("mariadbd", mariadbd, database),
        Daemon("slurmdbd", ["slurmdbd", "-D"]),
        Daemon("slurmctld", ["slurmctld", "-D"]),
        *(Daemon(node, ["slurmd", "-D", "-N", node]) for node in NODES),
    ]
