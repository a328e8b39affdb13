"""The node that this process is on, and the cluster that Slurm describes."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

from course.jobs import slurm_partitions
from course.lab import resources

SHARED = ("afs", "beegfs", "ceph", "cifs", "gluster", "gpfs", "lustre", "nfs", "panfs", "weka")
AVAILABLE = ("idle", "mixed", "allocated", "completing", "planned")  # states that accept jobs
NODE_FIELDS = "NodeList:|,PartitionName:|,StateLong:|,CPUs:|,CPUsState:|,Memory:|,Gres:|,GresUsed:|"


@dataclass(frozen=True)
class Gpu:
    """A GPU. `memory_gib` is None if it shares the node's memory."""

    name: str
    memory_gib: float | None


@dataclass(frozen=True)
class Disk:
    """A file system. A quota may leave less than `free_gib`."""

    uses: tuple[str, ...]  # the folders on it: runs, data, home
    path: str
    kind: str  # ext4, nfs4, lustre …
    shared: bool  # whether other nodes can read it, judging by its kind
    total_gib: float
    free_gib: float


@dataclass(frozen=True)
class Machine:
    """A node. `usable_threads` of its `threads` are available to this process."""

    host: str
    cpu: str
    sockets: int
    cores: int
    threads: int
    usable_threads: int
    memory_gib: float
    memory_free_gib: float
    gpus: tuple[Gpu, ...]
    disks: tuple[Disk, ...]
    job_id: str = ""  # of the Slurm job that this process belongs to

    def __str__(self) -> str:
        counts = Counter(gpu.name for gpu in self.gpus)
        gpus = ", ".join(f"{count} × {name}" for name, count in counts.items())
        job = f"inside Slurm job {self.job_id}" if self.job_id else "in no Slurm job"
        return (
            f"{self.host}: {self.cpu}, {self.cores} cores ({self.usable_threads} usable), "
            f"{self.memory_gib:.0f} GiB, {gpus or 'no GPU'}; {job}"
        )


@dataclass(frozen=True)
class Cluster:
    """What Slurm reports."""

    partitions: pd.DataFrame  # nodes, GPUs and cores, how many are free, and the longest job
    waiting: int  # jobs of all users
    running: int
    accounts: tuple[str, ...] = ()  # of this user


def machine() -> Machine:
    """Return this node as it is now."""
    from course.data import default_set
    from course.runs import runs_root
    from course.training import cpu_name

    (memory, memory_free), threads = resources.memory_bytes(), psutil.cpu_count() or 1
    socket_files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return Machine(
        host=platform.node().split(".")[0],
        cpu=cpu_name(),
        sockets=len({path.read_text() for path in socket_files}) or 1,
        cores=psutil.cpu_count(logical=False) or threads,
        threads=threads,
        usable_threads=resources.core_count(),
        memory_gib=memory / 2**30,
        memory_free_gib=memory_free / 2**30,
        gpus=_gpus(),
        disks=disks({"runs": runs_root(), "data": default_set.default_root(), "home": Path.home()}),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
    )


def _gpus() -> tuple[Gpu, ...]:
    import torch

    from course.training import device_name

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return ()
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    gpus = [torch.device(device.type, number) for number in range(torch.accelerator.device_count())]
    memory = [properties(gpu).total_memory / 2**30 if properties else None for gpu in gpus]
    return tuple(map(Gpu, map(device_name, gpus), memory))


def disks(folders: dict[str, Path]) -> tuple[Disk, ...]:
    """Return the file systems of folders, or of their parents if they do not exist yet.

    Args:
        folders: by their use.
    """
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    by_mount: dict[str, Disk] = {}
    for use, path in folders.items():
        folder = next(p for p in (path, *path.parents) if p.exists() and os.access(p, os.X_OK))
        parents = map(str, (folder.resolve(), *folder.resolve().parents))
        mount = next((parent for parent in parents if parent in mounts), "")
        kind, size = mounts.get(mount, "unknown"), shutil.disk_usage(folder)
        uses = (*by_mount[mount].uses, use) if mount in by_mount else (use,)
        shared = any(name in kind.lower() for name in SHARED)
        by_mount[mount] = Disk(uses, mount, kind, shared, size.total / 2**30, size.free / 2**30)
    return tuple(by_mount.values())


def cluster() -> Cluster | None:
    """Return what Slurm reports about nodes, partitions and jobs; None if it does not answer."""
    limits_min = {partition.name: partition.time_min for partition in slurm_partitions.partitions()}
    lines = _output("sinfo", "--Node", "--noheader", f"--Format={NODE_FIELDS}")
    if not limits_min or not lines:
        return None
    states = _output("squeue", "--noheader", "--format=%t").split()
    user = f"user={getpass.getuser()}"
    columns = ("--noheader", "--parsable2", "show", "associations", user, "format=Account")
    accounts = tuple(dict.fromkeys(_output("sacctmgr", *columns).split()))
    table = partition_table(lines, limits_min)
    return Cluster(table, states.count("PD"), states.count("R"), accounts)


def _output(*command: str) -> str:
    """Return what a Slurm command prints; "" if it fails."""
    answer = slurm_partitions.ask(*command)
    return answer.stdout if answer and answer.returncode == 0 else ""


def partition_table(lines: str, limits_min: dict[str, float]) -> pd.DataFrame:
    """Summarize sinfo's lines of `NODE_FIELDS`, one per node and partition, by partition.

    Args:
        limits_min: of the longest job, by partition; inf: no limit.
    """
    fields = [row[:8] for row in slurm_partitions.columns(lines, 9)]
    names = ["name", "partition", "state", "cores", "cores_used", "memory", "gpus", "gpus_used"]
    nodes = pd.DataFrame(fields, columns=names).astype({"cores": int})
    gpus, gpus_used = nodes["gpus"].map(gpu_count), nodes["gpus_used"].map(gpu_count)
    # A state that ends with * is of a node that does not respond.
    available = nodes["state"].str.rstrip("~#+-").isin(AVAILABLE)
    unused = nodes["cores_used"].str.startswith("0/")  # of allocated/idle/other/total
    nodes = nodes.assign(
        gpus=gpus, free=available & unused, free_gpus=(gpus - gpus_used) * available
    )
    by_partition = nodes.groupby("partition")
    table = pd.DataFrame(
        {
            "nodes": by_partition.size(),
            "free nodes": by_partition["free"].sum(),
            "GPUs per node": by_partition["gpus"].agg(_range),
            "GPUs": by_partition["gpus"].sum(),
            "free GPUs": by_partition["free_gpus"].sum(),
            "cores per node": by_partition["cores"].agg(_range),
        }
    )
    table = table.reindex([*limits_min]).reset_index(names="partition")
    return table.assign(**{"longest job": [*map(format_minutes, limits_min.values())]})


def gpu_count(gres: str) -> int:
    """Count GPUs in Slurm's generic resources: 4 in `gpu:a100:4(S:0-1),nvme:2`."""
    entries = [entry.split(":") for entry in re.sub(r"\([^)]*\)", "", gres).split(",")]
    counts = [words[-1] for words in entries if words[0] == "gpu"]
    return sum(int(count) if count.isdigit() else 1 for count in counts)


def _range(numbers: pd.Series) -> str:
    """Format numbers: 4, or 0 to 8."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))


def format_minutes(minutes: float) -> str:
    """Format minutes: 45 min, 20 h, 5 days, no limit."""
    if minutes == float("inf"):
        return "no limit"
    for length, unit in ((24 * 60, "days"), (60, "h")):
        if minutes >= 2 * length:
            return f"{minutes / length:.3g} {unit}"
    return f"{minutes:.3g} min"
