"""Query Slurm's partitions, and check that one of them would run a job."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass

import slurm_box
from course.jobs.batch_script import GRACE_MIN
from course.jobs.processes import job_environment
from course.jobs.sites import Site, user_file


@dataclass(frozen=True)
class Partition:
    """A partition: its longest job in minutes (inf: no limit), and the GPUs of a node."""

    name: str
    time_min: float
    gres: str
    is_default: bool = False

    def __str__(self) -> str:
        limit = "no time limit" if math.isinf(self.time_min) else f"at most {self.time_min:g} min"
        return f"{self.name} ({self.gres} a node, {limit})"


def partitions() -> list[Partition]:
    """Return the partitions that this user may use; [] if Slurm does not answer."""
    done = ask("sinfo", "--all", "--noheader", "--format=%P|%l|%G")
    if not done or done.returncode:
        return []
    offers = {}  # sinfo has a line for each kind of node in a partition: the first one counts
    for name, limit, gres in columns(done.stdout, 3):
        known = Partition(name.rstrip("*"), seconds(limit) / 60, gres.strip(), name.endswith("*"))
        offers.setdefault(name, known)
    return list(offers.values())


def seconds(text: str) -> float:
    """Return the seconds of Slurm's [days-][hours:]minutes:seconds; inf for any other text."""
    if not text[:1].isdigit():
        return math.inf  # infinite, UNLIMITED, INVALID, n/a
    parts = [int(part) for part in re.findall(r"\d+", text)]
    return sum(n * unit for n, unit in zip(reversed(parts), (1, 60, 3600, 86400)))


def check_partition(site: Site, offers: list[Partition]) -> None:
    """Raise ValueError for a job that Slurm would refuse, or never start."""
    known = {partition.name: partition for partition in offers}
    wanted = site.partition.split(",") if site.partition else []  # Slurm takes the first free one
    if unknown := [name for name in wanted if known and name not in known]:
        raise ValueError(
            f"site {site.name!r}: no partition {unknown[0]!r} here: choose one of "
            f'{", ".join(known)}, as partition = "…" in {user_file()}'
        )
    longest = _longest(site, offers)
    if longest and site.time_min > most_min(site, offers):
        raise ValueError(
            f"time_min={site.time_min:g} is too long for partition {longest.name!r}: at most "
            f"{most_min(site, offers):g}, or the job would never start"
        )


def _longest(site: Site, offers: list[Partition]) -> Partition | None:
    """Return the partition with the longest limit that a job of the site may use."""
    wanted = site.partition.split(",")
    usable = [
        partition
        for partition in offers
        if partition.name in wanted or not wanted[0] and partition.is_default
    ]
    return max(usable, key=lambda partition: partition.time_min, default=None)


def most_min(site: Site, offers: list[Partition]) -> float:
    """Return the largest time_min for a job of the site; inf if no limit is known."""
    longest = _longest(site, offers)
    return longest.time_min - GRACE_MIN if longest else math.inf


def ask(*command: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; None if it is missing, or does not answer."""
    env = job_environment() | slurm_box.environment()
    # A job's name may have bytes of a different encoding.
    text = {"encoding": "utf-8", "errors": "replace"}
    try:
        return subprocess.run(command, env=env, capture_output=True, timeout=timeout_s, **text)
    except (OSError, subprocess.TimeoutExpired):
        return None


def columns(output: str, count: int) -> list[list[str]]:
    """Return the rows of a command's output, whose columns are separated by bars.

    Lines without them, such as a site's banner, are left out; the last column may contain bars.
    """
    rows = (line.split("|", count - 1) for line in output.splitlines())
    return [row for row in rows if len(row) == count and row[0].strip()]
