"""Check that this machine is ready for the course; each check has a result and a fix."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from course import launch, rung
from course.data import default_set
from course.jobs import JobError, engine, sites
from course.runs import PROJECT, openings, runs_root
from trainspeed import resources

JOB_LIMIT_MIN = 3
ENDS_WITHIN_S = 30  # for a job to end after its record is written
JOB = '''"""A short job that uses PyTorch and its device."""
import time

import torch

from course.training.recorder import recording

with recording() as run:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    run.set(**run.describe(device))
    matrix, end = torch.randn(512, 512, device=device), time.monotonic() + 1
    while time.monotonic() < end:
        matrix = torch.tanh(matrix @ matrix)
    print("the sum is", matrix.sum().item())
'''


Result = tuple[str, ...]  # status, result and, unless the status is ok, a fix


@dataclass(frozen=True)
class Check:
    """One result. status: ok, note (it works, with a limitation) or fail."""

    name: str
    status: str
    result: str
    fix: str = ""


def examine(*, job: bool = True, site: str = "local") -> Iterator[Check]:
    """Run every check, one after another; a check that raises an error has failed.

    Args:
        job: also launch a ten-second job, on this site.
    """
    checks: dict[str, Callable[[], Result]] = {
        check.__name__: check
        for check in (python, packages, clone, trust, memory, disk, write_access, data_set)
    }
    checks |= {"accelerator": accelerator, "slurm": slurm, "kernel": kernel}
    checks |= {"ten_second_job": partial(ten_second_job, site)} if job else {}
    for name, check in checks.items():
        try:
            yield Check(name, *check())
        except Exception as error:  # a broken installation breaks checks in any way
            result = f"{type(error).__name__}: {error}"
            yield Check(name, "fail", result, "fix the cause of the error, then run make setup")


def python() -> Result:
    """Compare Python's version with the versions that the course supports."""
    result = f"{platform.python_version()} in {sys.prefix}"
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return "ok", result
    return "fail", result, "use Python 3.11 to 3.14, then run make setup"


def packages() -> Result:
    """Compare installed packages with the ranges in pyproject.toml."""
    requirements = [Requirement(text) for text in metadata.requires("make-training-fast") or []]
    wrong = [_mismatch(need) for need in requirements if not need.marker or need.marker.evaluate()]
    wrong = [text for text in wrong if text]
    if wrong:
        return "fail", "; ".join(wrong), "run make setup, which installs them"
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "torchvision", "submitit")]
    return "ok", ", ".join(versions)


def _mismatch(need: Requirement) -> str:
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return f"{need.name} is missing"
    fits = need.specifier.contains(version, prereleases=True)
    return "" if fits else f"{need.name} {version} is not {need.specifier}"


def clone() -> Result:
    """Check that Python imports the course of the current folder."""
    here = Path.cwd()
    parents = (here, *here.parents)
    clone_root = next((p for p in parents if (p / "course" / "config").is_dir()), None)
    if clone_root and clone_root.resolve() != PROJECT:
        result = f"Python imports the course of {PROJECT}, and you are in {clone_root}"
        fix = f"export PYTHONPATH={clone_root}, or your edits do nothing"
        return "fail", result, fix
    return "ok", f"the course in {PROJECT}"


def trust() -> Result:
    """Find what other people can change of what jobs execute: a launch refuses it."""
    found = openings()
    if refused := [x for x in found if x.is_certain and not x.is_trusted]:
        return "fail", "; ".join(map(str, refused)), "; ".join(x.fix for x in refused)
    if found:
        fix = "none needed if you trust them, or if no one else has an account here"
        return "note", "; ".join(map(str, found)), fix
    return "ok", "no one else can change what your jobs execute"


def memory() -> Result:
    """Check the host's memory: a quick run takes about 1.5 GiB, the full-size baseline about 8."""
    total, free = resources.memory_bytes()
    machine = psutil.virtual_memory().total
    result, is_limited = f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f}", total < machine
    if is_limited:
        result += f", the limit of this container or job (the machine has {machine / 2**30:.1f})"
    if free < 2 * 2**30:
        fix = "request more memory for it" if is_limited else "close programs"
        return "fail", result, f"{fix}: a quick run needs 2 GiB"
    if free < 8 * 2**30:
        return "note", result, "stay with --quick: full-size runs take 8 GiB"
    return "ok", result


def disk() -> Result:
    """Check the free space where runs and the data set are written."""
    places = {"runs": runs_root(is_checked=False), "data": default_set.default_root()}
    free = {name: shutil.disk_usage(_existing(path)).free for name, path in places.items()}
    result = ", ".join(f"{size / 2**30:.1f} GiB for {name}" for name, size in free.items())
    if min(free.values()) < 2**30:
        fix = "make room, or set COURSE_RUNS and COURSE_DATA to folders on a disk with 1 GiB"
        return "fail", result, fix
    return "ok", result


def write_access() -> Result:
    """Check that this user can write runs and data, by trying: quotas are not visible."""
    places = {"COURSE_RUNS": runs_root(is_checked=False)}
    if not default_set.is_complete(default_set.default_root()):  # a shared one may be read-only
        places["COURSE_DATA"] = default_set.default_root().parent
    for name, path in places.items():
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path) as file:
                file.write(b"x" * 4096)
                file.flush()
        except OSError as error:
            fix = f"set {name} to a folder that you may write"
            return "fail", f"{path}: {error.strerror}", fix
    return "ok", " and ".join(map(str, places.values()))


def data_set() -> Result:
    """Check that the default data set exists."""
    root = default_set.default_root()
    if default_set.is_complete(root):
        return "ok", f"the default set in {root}"
    return "note", f"not in {root} yet", "course data creates it (10 seconds)"


def accelerator() -> Result:
    """Report the accelerator, and the 16-bit formats that it has units for."""
    import torch

    from course.training import HALF, device_name, has_units

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    formats = [name for name in HALF if has_units(device, name)]
    units = f"hardware for {', '.join(formats)}" if formats else "no 16-bit hardware"
    if device.type != "cpu":
        result = f"{torch.accelerator.device_count()} × {device_name(device)}, {units}"
        return "ok", result
    result = f"none; the CPU has {units}"
    driver = shutil.which("nvidia-smi")
    if driver and subprocess.run([driver], capture_output=True).returncode == 0:
        fix = (
            "PyTorch does not detect the GPU that nvidia-smi shows: install a build for its driver"
        )
        return "fail", result, fix
    fix = "" if formats else "the rungs from amp on compute in fp32 here"
    return "note", result, fix


def slurm() -> Result:
    """Report Slurm's partitions, if this machine has Slurm."""
    if not shutil.which("sinfo"):
        return "note", "not on this machine", "none needed: site local runs the labs"
    from course.jobs import slurm_partitions

    if partitions := slurm_partitions.partitions():
        return "ok", "; ".join(map(str, partitions))
    result = "Slurm's commands are installed, but no cluster responds"
    return "note", result, "course slurm up starts one here; or contact your site's support"


def kernel() -> Result:
    """Find the Jupyter kernel that executes notebooks."""
    from jupyter_client.kernelspec import KernelSpecManager

    specs = KernelSpecManager().find_kernel_specs()
    if "python3" in specs:
        return "ok", specs["python3"]
    return "fail", "no kernel named python3", "python -m ipykernel install --sys-prefix"


def ten_second_job(site: str) -> Result:
    """Launch a ten-second job on a site and read its record."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(JOB)
        config, limits = rung("device", quick=True), {"time_min": JOB_LIMIT_MIN, "rerun": True}
        run = launch(script, config, site=site, **limits)
    try:
        run.wait(timeout_s=60 * JOB_LIMIT_MIN)
    except JobError as error:
        row = engine(run).queue_states([run]).get(run.name, {})
        run.cancel()
        if row.get("state") == "pending":
            result = f"not started within {JOB_LIMIT_MIN} minutes: {row['reason']}"
            return "note", result, "try again later, or in a reservation"
        fix = "read the log that it names; if it waited for a different run, try again later"
        return "fail", str(error), fix
    record = run.record
    result = f"{record.status} on {record.machine} with {sites.user_file()} as your sites"
    deadline = time.monotonic() + ENDS_WITHIN_S  # its supervisor still writes
    while engine(run).is_alive(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    shutil.rmtree(run.folder, ignore_errors=True)
    if run.executor == "slurm" and record.device == "cpu":
        fix = "if its node has one: update NVIDIA's driver, or install a build of PyTorch for it"
        return "note", f"{result}: the job found no GPU", fix
    return record.status, result


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists() and os.access(p, os.X_OK))
