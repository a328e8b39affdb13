"""The node that this process is on."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainspeed import resources

SHARED = ("afs", "beegfs", "ceph", "cifs", "gluster", "gpfs", "lustre", "nfs", "panfs", "weka")


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


def this_machine() -> Machine:
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


def gpu_count(gres: str) -> int:
    """Count GPUs in Slurm's generic resources: 4 in `gpu:a100:4(S:0-1),nvme:2`."""
    entries = [entry.split(":") for entry in re.sub(r"\([^)]*\)", "", gres).split(",")]
    counts = [words[-1] for words in entries if words[0] == "gpu"]
    return sum(int(count) if count.isdigit() else 1 for count in counts)


def format_minutes(minutes: float) -> str:
    """Format minutes: 45 min, 20 h, 5 days, no limit."""
    if minutes == float("inf"):
        return "no limit"
    for length, unit in ((24 * 60, "days"), (60, "h")):
        if minutes >= 2 * length:
            return f"{minutes / length:.3g} {unit}"
    return f"{minutes:.3g} min"
