"""Install Slurm's programs, and write the files of a cluster on one machine."""

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

from slurm_box.cluster import NODES, ClusterError, ports, which

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
GPUS = 4  # of each node
JOBS_PER_START, MAX_JOBS = 10_000, 60_000_000  # Slurm starts over after 67 million
TEMPLATES = Path(__file__).with_name("slurm_conf")
LOOPBACK = {name: "127.0.0.1" for name in ("controller", *NODES)}


def missing() -> list[str]:
    """Return the programs that a cluster needs and this machine lacks."""
    return [name for name in PROGRAMS if not which(name)]


def install() -> None:
    """Install what is missing, without starting any service.

    Raises:
        ClusterError: root or Debian is required, or the installation failed.
    """
    lacking = missing()
    if not lacking:
        return
    command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise ClusterError(
            f"not installed: {', '.join(lacking)}. On Debian or Ubuntu, run as root: {command}"
        )
    with FileLock("/run/slurm_box-install.lock"):  # two at once would collide in dpkg
        if missing():
            _install_packages(command)


def _install_packages(command: str) -> None:
    print(f"Installing {', '.join(PACKAGES)} …", file=sys.stderr)
    blocker = Path("/usr/sbin/policy-rc.d")  # otherwise Debian would start services
    created = not blocker.exists()
    if created:
        blocker.write_text("#!/bin/sh\nexit 101\n")
        blocker.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=env, check=False, capture_output=True)
        process = subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
            env=env,
            capture_output=True,
            text=True,
        )
    finally:
        if created:
            blocker.unlink()
    if remaining := missing():
        raise ClusterError(
            f"{command} did not install {', '.join(remaining)}:\n{process.stderr[-800:]}"
        )


def _first_job(conf: Path) -> int:
    """Return the first job id of this start: each start has its own block, so ids are unique.

    A controller that was killed may have lost its count, and would use ids again that accounting
    already knows. Clusters on one machine use different blocks, as they use different ports,
    because scripts derive a port from the id.
    """
    last = re.search(r"^FirstJobId=(\d+)", conf.read_text(), re.M) if conf.exists() else None
    if last:
        return (int(last[1]) + JOBS_PER_START) % MAX_JOBS
    return 1 + 97 * ports()["slurmctld"] % JOBS_PER_START


def write_files(home: Path, addresses: dict[str, str], is_shared: bool = False) -> None:
    """Create the cluster's folder: write the configuration; create keys and database only once.

    Args:
        home: the folder.
        addresses: of the controller and of each node.
        is_shared: whether jobs of all accounts reach munge's socket and their scripts in the spool.

    Raises:
        ClusterError: the database could not be created.
    """
    for name in ("munge", "database", "log", "run", "spool", "state"):
        (home / name).mkdir(exist_ok=True, mode=0o700)
    for name in ("", "munge", "run", "spool") if is_shared else ():
        (home / name).chmod(0o755)
    if is_shared:
        (home / "shared").touch()
    for number in range(GPUS):  # Slurm needs devices: each is a link to one that always exists
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
        # Accounts that share a cluster must not requeue each other's jobs.
        "urgent_tier": 1 if is_shared else 10,
        **ports(),
        **{f"{name}_address": address for name, address in addresses.items()},
        # The daemons bind to loopback; in a network the nodes reach out to each other.
        "bind": "NoCtldInAddrAny,NoInAddrAny" if addresses == LOOPBACK else "NoCtldInAddrAny",
        "prolog": "task_prolog.sh" if addresses == LOOPBACK else "network_prolog.sh",
        # Both nodes number their cores from 0, so jobs on both would be bound to the same core. In
        # a network each node has its share of the cores (`Network.entry`), for all its jobs.
        "task_plugin": "task/affinity" if addresses == LOOPBACK else "task/none",
    }
    for template in TEMPLATES.glob("*.conf"):
        target = home / template.name
        target.write_text(Template(template.read_text()).substitute(values))
        target.chmod(0o600 if template.stem == "slurmdbd" else 0o644)
    for script in TEMPLATES.glob("*.sh"):
        shutil.copy(script, home)
        (home / script.name).chmod(0o755)
    if not (home / "database" / "mysql").exists():
        _make_database(home / "database")


def _make_database(folder: Path) -> None:
    command = [
        which("mariadb-install-db"),
        "--no-defaults",
        f"--user={getpass.getuser()}",
        f"--datadir={folder}",
        # Of its own: one that starts deletes the temporary tables of others in a shared /tmp.
        f"--tmpdir={folder}",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    ]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        shutil.rmtree(folder)
        raise ClusterError(f"MariaDB's folder could not be created:\n{process.stderr[-800:]}")


@dataclass(frozen=True)
class Daemon:
    """A program of the cluster: its name here, its command, and where it answers."""

    name: str
    command: list[str]
    socket: Path | None = None  # None: at its port
    address: str = "127.0.0.1"

    def answers(self) -> bool:
        return not self.obstacle()

    def obstacle(self) -> str:
        """Return why it cannot be reached, such as "Connection refused"; "" if it answers."""
        if self.socket:
            return "" if self.socket.exists() else f"no {self.socket}"
        return obstacle(ports()[self.name], self.address)


def obstacle(port: int, address: str = "127.0.0.1") -> str:
    """Return why no program can be reached at this port; "" if one answers."""
    with socket.socket() as probe:
        probe.settimeout(1)  # a link that is down gives no answer
        number = probe.connect_ex((address, port))
        return f"{os.strerror(number)} at {address}:{port}" if number else ""


def daemons(home: Path, addresses: dict[str, str] = LOOPBACK) -> list[Daemon]:
    """Return the daemons in start order. Each stays in the foreground of its session."""
    munge, database = home / "munge" / "socket", home / "database" / "socket"
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
    # Without a network it is only reachable by its socket, in a folder of mode 700.
    mariadbd = [
        "mariadbd",
        "--no-defaults",
        f"--user={getpass.getuser()}",
        f"--datadir={home}/database",
        f"--tmpdir={home}/database",
        f"--socket={database}",
        "--skip-networking",
        "--skip-grant-tables",
        "--innodb-buffer-pool-size=64M",
    ]
    return [
        Daemon("munged", munged, munge),
        Daemon("mariadbd", mariadbd, database),
        Daemon("slurmdbd", ["slurmdbd", "-D"]),
        Daemon("slurmctld", ["slurmctld", "-D"], address=addresses["controller"]),
        *(Daemon(node, ["slurmd", "-D", "-N", node], address=addresses[node]) for node in NODES),
    ]
