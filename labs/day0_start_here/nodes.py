"""What machine is one on? This node, and what Slurm tells of the cluster around it, as data."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from course.config import GIB
from course.jobs.slurm_commands import ask, partitions

if TYPE_CHECKING:
    import pandas as pd

SHARED = ("afs", "beegfs", "ceph", "cifs", "gluster", "gpfs", "lustre", "nfs", "panfs", "weka")
UP = ("idle", "mixed", "allocated", "completing", "planned")  # states that take jobs, now or soon
NODE_FIELDS = "NodeList:|,PartitionName:|,StateLong:|,CPUs:|,CPUsState:|,Memory:|,Gres:|,GresUsed:|"


@dataclass(frozen=True)
class Gpu:
    """One accelerator: its name, and its memory in GiB (None: it shares the node's)."""

    name: str
    memory_gib: float | None


@dataclass(frozen=True)
class Disk:
    """Where something is written: what for, and the file system there.

    `free_gib` is the file system's; a quota, which it does not tell, may leave you less.
    """

    uses: tuple[str, ...]
    path: str
    kind: str  # of file system: ext4, nfs4, lustre …
    shared: bool  # is it one that other nodes can see, as far as its kind tells?
    total_gib: float
    free_gib: float


@dataclass(frozen=True)
class Machine:
    """This node. `threads` are the hardware's, `usable` those that this process may use."""

    host: str
    cpu: str
    sockets: int
    cores: int
    threads: int
    usable: int
    memory_gib: float
    memory_free_gib: float
    gpus: tuple[Gpu, ...]
    disks: tuple[Disk, ...]
    job_id: str = ""  # of the Slurm job that this process is part of; "": of none

    def __str__(self) -> str:
        gpus = ", ".join(f"{n} × {gpu}" for gpu, n in Counter(g.name for g in self.gpus).items())
        place = f"inside Slurm job {self.job_id}" if self.job_id else "in no Slurm job"
        return (
            f"{self.host}: {self.cpu}, {self.cores} cores ({self.usable} usable), "
            f"{self.memory_gib:.0f} GiB, {gpus or 'no GPU'}; {place}"
        )


@dataclass(frozen=True)
class Node:
    """One node of the cluster, as Slurm tells it. `state` is Slurm's word: idle, mixed, down*."""

    name: str
    partitions: tuple[str, ...]
    state: str
    cores: int
    cores_used: int
    memory_gib: float
    gpus: int
    gpus_used: int

    @property
    def is_up(self) -> bool:
        """Does it take jobs, now or when those on it are over? One marked * does not answer."""
        return self.state.rstrip("~#+-") in UP

    @property
    def free_gpus(self) -> int:
        return self.gpus - self.gpus_used if self.is_up else 0

    @property
    def is_free(self) -> bool:
        return self.is_up and self.cores_used == 0


@dataclass(frozen=True)
class Cluster:
    """What Slurm tells: nodes, the longest job of each partition in minutes, everyone's jobs."""

    nodes: tuple[Node, ...]
    limits_min: dict[str, float]  # by partition; inf: no limit
    waiting: int
    running: int
    accounts: tuple[str, ...] = ()  # those under which accounting knows this user

    def table(self) -> pd.DataFrame:
        """One row a partition: nodes, GPUs, how many of each are free, the longest job."""
        import pandas as pd

        rows = []
        for name, limit in self.limits_min.items():
            nodes = [node for node in self.nodes if name in node.partitions]
            rows.append(
                {
                    "partition": name,
                    "nodes": len(nodes),
                    "free nodes": sum(node.is_free for node in nodes),
                    "GPUs a node": span(node.gpus for node in nodes),
                    "GPUs": sum(node.gpus for node in nodes),
                    "free GPUs": sum(node.free_gpus for node in nodes),
                    "cores a node": span(node.cores for node in nodes),
                    "longest job": clock(limit),
                }
            )
        return pd.DataFrame(rows)


def machine(**places: Path) -> Machine:
    """This node as it is now.

    Args:
        places: folders whose disks are shown, by what they are for; without any, where runs,
            the data set and the user's files lie.
    """
    from course.training.recorder import cpu_name

    if not places:
        from course.data.default_set import default_root
        from course.runs.run import runs_root

        places = {"runs": runs_root(), "data": default_root(), "home": Path.home()}
    host = psutil.virtual_memory()
    threads = psutil.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
    return Machine(
        host=os.uname().nodename.split(".")[0] if hasattr(os, "uname") else "this machine",
        cpu=cpu_name(),
        sockets=_sockets(),
        cores=psutil.cpu_count(logical=False) or threads,
        threads=threads,
        usable=usable,
        memory_gib=host.total / GIB,
        memory_free_gib=host.available / GIB,
        gpus=_gpus(),
        disks=disks(places),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
    )


def cluster() -> Cluster | None:
    """What Slurm tells of its nodes and partitions; None where none answers."""
    offers = partitions()
    done = ask("sinfo", "--Node", "--noheader", f"--Format={NODE_FIELDS}")
    if not offers or not done or done.returncode:
        return None
    states = ask("squeue", "--noheader", "--format=%t")
    jobs = states.stdout.split() if states and states.returncode == 0 else []
    limits = {each.name: each.time_min for each in offers}
    return Cluster(nodes(done.stdout), limits, jobs.count("PD"), jobs.count("R"), _accounts())


def nodes(told: str) -> tuple[Node, ...]:
    """Nodes from sinfo's lines of `NODE_FIELDS`; a node has a line for each partition it is in."""
    found: dict[str, Node] = {}
    for line in told.splitlines():
        if len(fields := line.strip().split("|")) < 8:
            continue
        name, partition, state, cores, use, memory, gres, used = fields[:8]
        before = found[name].partitions if name in found else ()
        taken = int(use.split("/")[0])  # of allocated/idle/other/total
        found[name] = Node(
            name,
            (*before, partition),
            state,
            int(cores),
            taken,
            int(memory) / 1024,
            gpu_count(gres),
            gpu_count(used),
        )
    return tuple(found.values())


def gpu_count(gres: str) -> int:
    """GPUs in Slurm's words for generic resources: 4 in `gpu:a100:4(S:0-1),nvme:2`."""
    entries = [each.split(":") for each in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(
        int(words[-1]) if words[-1].isdigit() else 1 for words in entries if words[0] == "gpu"
    )


def disks(places: dict[str, Path]) -> tuple[Disk, ...]:
    """The file systems on which folders lie, or will lie once they are made."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    found: dict[str, Disk] = {}
    for use, path in places.items():
        there = next(p for p in (path, *path.parents) if p.exists() and os.access(p, os.X_OK))
        above = [str(each) for each in (there.resolve(), *there.resolve().parents)]
        mount = next((each for each in above if each in mounts), "")
        kind, size = mounts.get(mount, "unknown"), shutil.disk_usage(there)
        uses = (*found[mount].uses, use) if mount in found else (use,)
        found[mount] = Disk(uses, mount, kind, is_shared(kind), size.total / GIB, size.free / GIB)
    return tuple(found.values())


def is_shared(kind: str) -> bool:
    """Is a file system of this kind one that several nodes see? Known by name: nfs4, lustre …"""
    return any(word in kind.lower() for word in SHARED)


def span(numbers: Iterable[int]) -> str:
    """Numbers in short: 4, or 0 to 8 where they differ."""
    known = sorted(set(numbers))
    return "–" if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def clock(minutes: float) -> str:
    """Minutes for people: 45 min, 20 h, 5 days, no limit."""
    for length, unit in ((24 * 60, "days"), (60, "h"), (1, "min")):
        if minutes >= 2 * length and minutes != float("inf"):
            return f"{minutes / length:.3g} {unit}"
    return "no limit" if minutes == float("inf") else f"{minutes:.3g} min"


def _sockets() -> int:
    pattern = "cpu[0-9]*/topology/physical_package_id"
    files = Path("/sys/devices/system/cpu").glob(pattern)
    return len({path.read_text() for path in files}) or 1


def _gpus() -> tuple[Gpu, ...]:
    import torch

    from course.training.recorder import device_name

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return ()
    module, found = torch.get_device_module(device), []
    for number in range(torch.accelerator.device_count()):
        each, gib = torch.device(device.type, number), None
        if hasattr(module, "get_device_properties"):
            gib = module.get_device_properties(each).total_memory / GIB
        found.append(Gpu(device_name(each), gib))
    return tuple(found)


def _accounts() -> tuple[str, ...]:
    words = ("show", "associations", f"user={getpass.getuser()}", "format=Account")
    done = ask("sacctmgr", "--noheader", "--parsable2", *words)
    return tuple(dict.fromkeys(done.stdout.split())) if done and done.returncode == 0 else ()
