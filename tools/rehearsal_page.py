"""Report a rehearsal: each notebook's outcome, slow cells and runs, and the page with them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from course.jobs import launch
from course.jobs.sites import Site
from course.jobs.slurm_partitions import ask
from course.runs.files import write_atomically
from course.runs.run import Run, all_runs, git_sha, runs_root
from course.text import digits, printable

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOT_RUN, RUNNING, OK, FAILED, INTERRUPTED = "not run", "running", "ok", "failed", "interrupted"
REPORT = "report.html"
TEMPLATE = Path(__file__).with_name("rehearsal_page.html.j2")
PACKAGES = ("torch", "torchvision", "papermill", "jupyterlab")


@dataclass(frozen=True)
class Cell:
    """A code cell that was started: its number in In [ ], id, first line, and time."""

    number: int | None
    cell_id: str
    line: str
    seconds: float


@dataclass(frozen=True)
class UsedRun:
    """A run that a notebook launched, or reused (then it is not fresh)."""

    run: str
    status: str
    fresh: bool
    gpus: int
    job_id: str
    host: str  # of the first process
    machine: str
    launched_at: str
    waited_s: float | None  # from the launch until its first process started
    took_s: float | None  # from then until its end
    images_per_s: float | None
    error: str
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """The result of one notebook: not run, running, ok, failed or interrupted."""

    notebook: str
    status: str
    executed: Path
    page: Path
    seconds: float = 0.0
    error: str = ""
    cell: Cell | None = None  # where it stopped, unless it is ok
    slowest: tuple[Cell, ...] = ()
    runs: tuple[UsedRun, ...] = ()


@dataclass
class Rehearsal:
    """Notebooks executed one after another on a site, and their outcomes so far."""

    site: str
    script: str
    quick: bool
    cell_minutes: float
    minutes: float  # limit per notebook; 0: none
    folder: Path
    environment: dict[str, str]
    started_at: str
    outcomes: list[Outcome]
    ended_at: str = ""  # empty while it runs, or if it was interrupted

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    @property
    def passed(self) -> bool:
        return all(outcome.status == OK for outcome in self.outcomes)

    @property
    def interrupted(self) -> bool:
        return any(outcome.status == INTERRUPTED for outcome in self.outcomes)


def started_cells(executed: Path) -> list[Cell]:
    """Return the code cells that papermill started, in order; the last may not have ended."""
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
    """Return the runs that the notebook's output names, by time; fresh: launched after `since`.

    `launch` prints the name of every run, so runs of other people and notebooks in the same folder
    are excluded. `wait` also names runs that a run waits for: these are not the notebook's.
    """
    printed = re.sub(r" waits: .*", "", "\n".join(_outputs(_read(executed))))
    runs = [run for run in all_runs() if re.search(rf"(?<!\w){run.name}(?!\.?\w)", printed)]
    return sorted(
        (_used_run(run, since) for run in runs),
        key=lambda used: (used.launched_at, used.job_id.zfill(12)),
    )


def _used_run(run: Run, since: str) -> UsedRun:
    launch.refresh(run)
    request, started, record = run.launched, run.started, run.record
    launched_at, began = request.get("launched_at", ""), started.get("started_at", "")
    return UsedRun(
        run.name,
        run.status,
        launched_at >= since,
        request.get("gpus", 1),
        str(request.get("job_id", "")),
        started.get("host", ""),
        record.machine if record else "",
        launched_at,
        _seconds_between(launched_at, began),
        _seconds_between(began, record.ended_at) if record else None,
        record.images_per_s if record else None,
        record.error if record else "",
        run.folder,
    )


def _seconds_between(begin: str, end: str) -> float | None:
    if not begin or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def _read(executed: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(executed, as_version=4)


def _outputs(notebook: NotebookNode) -> Iterable[str]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/plain", "")
            yield output.get("evalue", "")


def _first_line(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("#", "%"))]
    return next(iter([*code, *lines]), "")


def write_page(rehearsal: Rehearsal) -> None:
    """Write the report as one file. Raises OSError if its folder cannot be written."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "duration": duration,
        "digits": digits,
        "plain": printable,
        "quoted": quote,
    }
    states = [outcome.status for outcome in rehearsal.outcomes]
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        rehearsal=rehearsal,
        counts=", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
        written_at=datetime.now().isoformat(sep=" ", timespec="seconds"),
        link=lambda path: quote(os.path.relpath(path, rehearsal.folder)),
    )
    write_atomically(rehearsal.report, page)


def duration(seconds: float | None) -> str:
    """Format seconds: 0.4 s, 12 s, 3 min 20 s, 1 h 5 min; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def installed_version(package: str) -> str:
    """Return a package's version, or "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def describe_environment(site: Site, command: str) -> dict[str, str]:
    """Describe what was executed and where, for later readers of the page."""
    names = ("executor", "time_min", "data_root") if site.executor == "local" else asdict(site)
    settings = {name: getattr(site, name) for name in names if name != "name"}
    slurm = ask("sinfo", "--version")
    versions = [
        f"Python {platform.python_version()}",
        *(f"{name} {version}" for name in PACKAGES if (version := installed_version(name))),
        *([slurm.stdout.strip()] if slurm and slurm.stdout.strip() else []),
    ]
    return {
        "command": command,
        "site": ", ".join(f"{name} {_text(value)}" for name, value in settings.items() if value),
        "notebooks run on": f"{platform.node()}, {os.cpu_count()} cores, {platform.platform()}",
        "runs folder": str(runs_root()),
        "versions": ", ".join(versions),
        "commit": git_sha() or "not a git clone",
    }


def _text(value: Any) -> str:
    return "; ".join(value) if isinstance(value, list | tuple) else str(value)
