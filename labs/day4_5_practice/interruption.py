"""A run that is stopped from outside, here or by a scheduler, and small ones to compare."""

from __future__ import annotations

import time
from typing import Any

from course.config import Config, rung
from course.jobs.launch import JobError, cancel, refresh, steps_done
from course.jobs.slurm_commands import ask
from course.runs.run import Run

WAIT_S = 300.0


def stop(run: Run, after: int, timeout_s: float = WAIT_S) -> Run:
    """Once a run has so many steps behind it, have it ended from outside.

    On Slurm its job is put back into the queue, as a job of higher priority has it put back, and
    goes on by itself. On this machine it is cancelled: launch the same again, and it goes on.

    Raises:
        JobError: it ended before, or did not come so far in time.
    """
    deadline = time.monotonic() + timeout_s
    while steps_done(run) < after:
        status = refresh(run)
        if status not in ("queued", "running") or time.monotonic() > deadline:
            raise JobError(f"{run.name} is {status} after {steps_done(run)} of {after} steps")
        time.sleep(0.2)
    if run.launched.get("executor") != "slurm":
        return cancel(run)
    number = str(run.launched["job_id"])
    done = ask("scontrol", "requeue", number)
    if not done or done.returncode:
        raise JobError(f"Slurm did not put {run.name} back: {done.stderr if done else 'silent'}")
    _hurry(number, deadline)
    return run


def _hurry(number: str, deadline: float) -> None:
    """Slurm lets a job that it has put back wait for two minutes; this one need not."""
    while time.monotonic() < deadline:
        done = ask("squeue", "-h", "-j", number, "-o", "%T")
        if done and done.stdout.strip() == "PENDING":
            ask("scontrol", "update", f"JobId={number}", "StartTime=now")
            return
        time.sleep(0.5)


def small(how: str = "torch.save", *, quick: bool = True, **own: Any) -> Config:
    """A short training that saves often, as `saving` has it at full size.

    Args:
        how: "never", "torch.save" or "async_save".
        quick: for a processor.
        own: fields of the config that are otherwise.
    """
    ways = {
        "never": {},
        "torch.save": {"save_every": 4},
        "async_save": {"save_every": 4, "async_save": True},
    }
    if how not in ways:
        raise ValueError(f"how={how!r}: choose {', '.join(ways)}")
    size: dict[str, Any] = {"budget_s": 0.0, "val_steps": 0, "deterministic": True}
    if quick:
        size |= {"model": "resnet18", "image_px": 32, "batch_size": 4, "precision": "fp32"}
        size |= {"steps": 40}
    named = {"rung": f"saves-{how.replace('.', '-')}"}
    return rung("restarted", quick=quick, **size | {"save_every": 0} | ways[how] | own | named)
