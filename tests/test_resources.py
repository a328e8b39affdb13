"""The memory and cores of a container or a job, from its control groups."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from course.config import GIB
from labs.start_here import doctor
from trainspeed import resources

MIB = 2**20
LIMITS = {  # by version: the folder of a controller, its files of a limit and of its use
    1: ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("", "memory.max", "memory.current", ""),
}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for control groups of a machine of 22 GiB and 64 cores."""
    top = tmp_path / "groups"
    top.mkdir()
    monkeypatch.setattr(resources, "GROUPS", top)
    monkeypatch.setattr(resources, "OWN_GROUPS", tmp_path / "own")
    machine = SimpleNamespace(total=22 * GIB, available=20 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    return top


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("limited", ["job/task", "job", "", None])
def test_the_lowest_limit_counts(groups: Path, version: int, limited: str | None) -> None:
    """Of the process's own group, Slurm's of the job, or a container's, whose folder is a root."""
    controller, limit, use, prefix = LIMITS[version]
    own = "4:memory:/job/task\n" if version == 1 else "0::/job/task\n"
    resources.OWN_GROUPS.write_text(own)
    if limited is None:  # the group has no folder: a container that has another name outside
        limited = ""
    else:
        unlimited = 2**63 - 4096 if version == 1 else "max"
        for name in ("", "job", "job/task"):
            write(groups / controller / name, **{limit: unlimited, use: 300 * MIB})
    stat = "\n".join(f"{prefix}{name}_file {50 * MIB}" for name in ("inactive", "active"))
    stat = f"inactive_file 1\n{stat}" if prefix else stat
    write(
        groups / controller / limited,
        **{limit: 700 * MIB, use: 300 * MIB, "memory.stat": stat},
    )
    assert resources.memory_bytes() == (700 * MIB, 500 * MIB)  # page cache can be taken back
    level, result, fix = doctor.memory()
    assert level == "fail" and "0.5 GiB free of 0.7, the limit of this container" in result
    assert "the machine has 22.0" in result and "request more memory" in fix


def test_without_limits_the_machine_counts(groups: Path) -> None:
    assert resources.memory_bytes() == (22 * GIB, 20 * GIB) and resources.core_count() == 64
    resources.OWN_GROUPS.write_text("5:cpu,cpuacct:/\n4:memory:/\n0::/\n")
    write(groups, memory__max="max", memory__current=5, cpu__max="max 100000")
    write(groups / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert resources.memory_bytes() == (22 * GIB, 20 * GIB) and resources.core_count() == 64


def test_cores_of_a_share_of_the_time(groups: Path) -> None:
    resources.OWN_GROUPS.write_text("5:cpu,cpuacct:/job\n0::/job\n")
    write(groups, cpu__max="250000 100000")
    assert resources.core_count() == 3
    write(groups / "cpu" / "job", cpu__cfs_quota_us=50000, cpu__cfs_period_us=100000)
    assert resources.core_count() == 1
