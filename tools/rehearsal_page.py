"""What an executed notebook shows: its slow cells, the runs that it used; and the report's page."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from course.jobs import launch
from course.jobs.sites import Site
from course.jobs.slurm_commands import ask
from course.runs.files import write_atomically
from course.runs.run import Run, all_runs, git_sha, runs_root
from course.text import digits, printable

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOT_RUN, RUNNING, OK, FAILED, INTERRUPTED = "not run", "running", "ok", "failed", "interrupted"
REPORT = "report.html"
TEMPLATE = Path(__file__).with_name("rehearsal_page.html.j2")
PACKAGES = ("torch", "torchvision", "submitit", "papermill", "jupyterlab")


@dataclass(frozen=True)
class Cell:
    """A code cell that was begun: its number in In [ ], its id, its first line, its seconds."""

    number: int | None
    cell_id: str
    line: str
    seconds: float


@dataclass(frozen=True)
class UsedRun:
    """A run that a notebook launched, or found from before (then it is not fresh)."""

    run: str
    status: str
    fresh: bool
    gpus: int
    job_id: str
    nodes: str  # as Slurm accounts for them, else the host of the first process
    machine: str
    launched_at: str
    waited_s: float | None  # from the launch until its first process began
    took_s: float | None  # from then until its end
    images_per_s: float | None
    error: str
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """One notebook: not run, running, ok, failed or interrupted, and where its output lies."""

    notebook: str
    status: str
    executed: Path
    page: Path
    seconds: float = 0.0
    error: str = ""
    cell: Cell | None = None  # where it stopped, unless it is ok
    slowest: tuple[Cell, ...] = ()
    runs: tuple[UsedRun, ...] = ()


@dataclass(frozen=True)
class Rehearsal:
    """Notebooks executed one after the other for one site, and how each went so far."""

    site: str
    script: str
    quick: bool
    cell_minutes: float
    minutes: float  # of a notebook; 0: no limit
    folder: Path
    facts: dict[str, str]  # what was done where, in words
    started_at: str
    outcomes: tuple[Outcome, ...]
    ended_at: str = ""  # empty: it goes on, or was cut off

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    @property
    def passed(self) -> bool:
        return all(outcome.status == OK for outcome in self.outcomes)

    @property
    def interrupted(self) -> bool:
        return any(outcome.status == INTERRUPTED for outcome in self.outcomes)

    def but(self, number: int, outcome: Outcome) -> Rehearsal:
        """The same with another outcome of this notebook."""
        outcomes = (*self.outcomes[:number], outcome, *self.outcomes[number + 1 :])
        return replace(self, outcomes=outcomes)


def begun_cells(executed: Path) -> list[Cell]:
    """The code cells that papermill began to execute, in order; the last may not have ended."""
    return [
        Cell(
            cell.execution_count,
            cell.get("id", ""),
            _first_line(cell.source),
            cell.metadata.papermill.duration or 0.0,
        )
        for cell in _read(executed).cells
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]


def used_runs(executed: Path, since: str) -> list[UsedRun]:
    """The runs whose names the notebook's output has, by time; fresh: launched at `since` or later.

    `launch` prints the name of every run, so those of other people and notebooks in the same
    folder are not counted.
    """
    printed = "\n".join(_printed(_read(executed)))
    used = [
        run for run in all_runs() if re.search(rf"(?<!\w){re.escape(run.name)}(?!\.?\w)", printed)
    ]
    for run in used:
        launch.refresh(run)
    nodes = _nodes(used)
    found = [_used(run, since, nodes.get(run.name, "")) for run in used]
    return sorted(found, key=lambda each: (each.launched_at, each.job_id.zfill(12)))


def _used(run: Run, since: str, nodes: str) -> UsedRun:
    asked, began, record = run.launched, run.started.get("started_at", ""), run.record
    launched_at = asked.get("launched_at", "")
    return UsedRun(
        run.name,
        run.status,
        launched_at >= since,
        asked.get("gpus", 1),
        str(asked.get("job_id", "")),
        nodes or run.started.get("host", ""),
        record.machine if record else "",
        launched_at,
        _seconds(launched_at, began),
        _seconds(began, record.ended_at) if record else None,
        record.images_per_s if record else None,
        record.error if record else "",
        run.folder,
    )


def _nodes(used: Iterable[Run]) -> dict[str, str]:
    """The nodes of each run's job, by the run's name, as far as Slurm's accounting tells."""
    numbers = [
        str(run.launched["job_id"])
        for run in used
        if run.launched.get("executor") == "slurm" and "job_id" in run.launched
    ]
    if not numbers:
        return {}
    done = ask("sacct", "-n", "-P", "-X", "-j", ",".join(numbers), "-o", "JobName,NodeList")
    rows = [line.split("|") for line in done.stdout.splitlines()] if done else []
    return {name: nodes for name, nodes in rows if nodes != "None assigned"}


def _seconds(begin: str, end: str) -> float | None:
    if not begin or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _read(executed: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(executed, as_version=4)


def _printed(notebook: NotebookNode) -> Iterable[str]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/plain", "")
            yield output.get("evalue", "")


def _first_line(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip()]
    return next(
        (line for line in lines if not line.startswith(("#", "%"))), lines[0] if lines else ""
    )


def write_page(rehearsal: Rehearsal) -> None:
    """Write the report's page, which needs nothing but itself.

    Raises:
        OSError: the folder cannot be written.
    """
    page = _template().render(
        rehearsal=rehearsal,
        counts=_counts(rehearsal),
        written_at=datetime.now().isoformat(sep=" ", timespec="seconds"),
        link=lambda path: quote(os.path.relpath(path, rehearsal.folder)),
    )
    write_atomically(rehearsal.report, page)


@cache  # the page is written before and after each notebook
def _template() -> Any:
    import jinja2

    surroundings = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    surroundings.filters |= {"took": took, "digits": digits, "plain": printable, "quoted": quote}
    return surroundings.from_string(TEMPLATE.read_text(encoding="utf-8"))


def took(seconds: float | None) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min 20 s, 1 h 5 min; a dash where there are none."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _counts(rehearsal: Rehearsal) -> str:
    """How many notebooks ended how: 3 ok, 1 failed."""
    states = [outcome.status for outcome in rehearsal.outcomes]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def facts(site: Site, command: str) -> dict[str, str]:
    """What is done where, in words: for whoever reads the page on another day."""
    meant = ("executor", "time_min", "data_root") if site.executor == "local" else asdict(site)
    settings = {key: getattr(site, key) for key in meant if key != "name" and getattr(site, key)}
    versions = [
        f"Python {platform.python_version()}",
        *(f"{name} {_version(name)}" for name in PACKAGES),
        *_slurm(),
    ]
    return {
        "command": command,
        "site": ", ".join(f"{key} {_setting(value)}" for key, value in settings.items()),
        "notebooks run on": f"{platform.node()}, {os.cpu_count()} cores, {platform.platform()}",
        "runs folder": str(runs_root()),
        "versions": ", ".join(versions),
        "commit": git_sha() or "not a git clone",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _setting(value: Any) -> str:
    return "; ".join(value) if isinstance(value, list | tuple) else str(value)


def _slurm() -> list[str]:
    done = ask("sinfo", "--version")
    return [done.stdout.strip()] if done and done.stdout.strip() else []
