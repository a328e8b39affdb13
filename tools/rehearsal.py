"""Execute the notebooks on a site before a course begins, and report on each."""

from __future__ import annotations

import ast
import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from course.checks import discovery
from course.checks.exercises import SOLUTION
from course.jobs import launch, sites
from course.jobs.slurm_partitions import ask
from course.runs.files import write_atomically
from course.runs.run import PROJECT, Run, all_runs, git_sha, runs_root
from course.text import digits, printable

FOLDER = PROJECT / "notebooks"
TEMPLATE = Path(__file__).with_name("rehearsal.html.j2")
PACKAGES = ("torch", "torchvision", "papermill", "jupyterlab")
SLOW_CELLS, SLOW_S = 5, 1.0  # the report lists up to this many cells that took this long
NOT_RUN, RUNNING, OK, FAILED, INTERRUPTED = "not run", "running", "ok", "failed", "interrupted"


@dataclass(frozen=True)
class Cell:
    """A code cell that was started: its number in In [ ], id, first line, and time."""

    number: int | None
    cell_id: str
    line: str
    seconds: float


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
    runs: tuple[dict[str, Any], ...] = ()


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
        return self.folder / "report.html"

    @property
    def passed(self) -> bool:
        return all(outcome.status == OK for outcome in self.outcomes)

    @property
    def interrupted(self) -> bool:
        return any(outcome.status == INTERRUPTED for outcome in self.outcomes)


def matching(pattern: str = "*") -> list[Path]:
    """Return notebooks whose name or lab fits a shell pattern, in the order of the course."""
    paths = sorted(FOLDER.glob("*.ipynb"))
    chosen = [
        path
        for path in paths
        if any(
            fnmatch(name, pattern) for name in (path.stem, path.name, discovery.topic(path.stem))
        )
    ]
    if not chosen:
        names = ", ".join(path.stem for path in paths)
        raise ValueError(f"no notebook fits {pattern!r}: there are {names}")
    return chosen


def rehearse(
    notebooks: Sequence[Path],
    *,
    site: str = "local",
    script: str = SOLUTION,
    quick: bool = False,
    cell_minutes: float = 60,
    minutes: float = 0,
    command: str = "",
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Rehearsal:
    """Execute notebooks one after another, and write the report before and after each.

    A failure does not stop the others; Ctrl-C does. Jobs that a failed notebook leaves behind are
    cancelled.

    Args:
        script: what notebooks launch. A notebook whose script has a different name uses the file
            of that name in the same folder.
        cell_minutes: limit per cell; a notebook that exceeds it has failed.
        minutes: limit per notebook; 0: none.
        command: the command line, for the report.
        on_outcome: called after each notebook.

    Raises:
        ValueError: no such site, a limit that is out of range, or a folder that cannot be written.
    """
    place = sites.get(site)
    if not 0 < cell_minutes < math.inf:
        raise ValueError(f"cell_minutes={cell_minutes:g}: expected a number above 0")
    if not 0 <= minutes < math.inf:
        raise ValueError(f"minutes={minutes:g}: expected 0, which means no limit, or more")
    folder = runs_root() / "notebooks" / (re.sub(r"[^\w.-]", "_", site).lstrip(".") or "_")
    outcomes = [
        Outcome(path.stem, NOT_RUN, folder / path.name, folder / f"{path.stem}.html")
        for path in notebooks
    ]
    environment = describe_environment(place, command)
    limits = cell_minutes, minutes
    rehearsal = Rehearsal(site, script, quick, *limits, folder, environment, _now(), outcomes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_page(rehearsal)
    except OSError as error:
        raise ValueError(
            f"{rehearsal.report} cannot be written: {error.strerror}. Make room there, or set "
            f"COURSE_RUNS to a folder that you may write"
        ) from error
    for number, source in enumerate(notebooks):
        outcomes[number] = replace(outcomes[number], status=RUNNING)
        _update_page(rehearsal)
        outcomes[number] = _execute(source, outcomes[number], rehearsal)
        _update_page(rehearsal)
        on_outcome(outcomes[number])
        if rehearsal.interrupted:
            return rehearsal
    rehearsal.ended_at = _now()
    _update_page(rehearsal)
    return rehearsal


def _now() -> str:
    return datetime.now().isoformat(timespec="seconds")


def _execute(source: Path, outcome: Outcome, rehearsal: Rehearsal) -> Outcome:
    """Execute one notebook with papermill, and write it with its output, also as HTML."""
    start, since, stopped = time.monotonic(), _now(), True
    try:
        for path in (outcome.executed, outcome.page):  # of an earlier rehearsal
            path.unlink(missing_ok=True)
        _run_papermill(source, outcome.executed, rehearsal)
        error = _exceeded(rehearsal, time.monotonic() - start)
        status, stopped = FAILED if error else OK, False
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted from the keyboard"
    except Exception as problem:  # a dead kernel, a full disk: the other notebooks still count
        status, error = FAILED, _message(problem, rehearsal, time.monotonic() - start)
    outcome = replace(outcome, status=status, error=error, seconds=time.monotonic() - start)
    if not outcome.executed.exists():  # it failed before its first cell
        return outcome
    try:
        outcome = _with_details(outcome, since, stopped)
        outcome.page.write_text(_to_html(outcome.executed))
    except Exception as problem:  # a notebook that a full disk cut short
        error = f"{error}\nThe executed notebook cannot be shown: {problem}".strip()
        outcome = replace(outcome, status=FAILED if status == OK else status, error=error)
    return outcome


def _run_papermill(source: Path, target: Path, rehearsal: Rehearsal) -> None:
    import papermill
    from traitlets.config import Config

    parameters = _parameters(source, rehearsal)
    cell_limit_s = math.ceil(rehearsal.cell_minutes * 60)
    deadline = time.monotonic() + (rehearsal.minutes * 60 or math.inf)

    def seconds_left(cell: Any) -> int:
        return max(1, math.ceil(min(cell_limit_s, deadline - time.monotonic())))

    papermill.execute_notebook(
        str(source),
        str(target),
        parameters,
        cwd=str(FOLDER),
        timeout_func=seconds_left,  # for each cell
        start_timeout=cell_limit_s,  # to start the kernel: 60 s are not enough on a busy machine
        # Other users of this machine could read unencrypted messages.
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
    )


def _parameters(source: Path, rehearsal: Rehearsal) -> dict[str, Any]:
    """Return the notebook's parameters. Raises ValueError if it lacks one."""
    import papermill

    parameters = {"quick": rehearsal.quick, "script": rehearsal.script, "site": rehearsal.site}
    known = papermill.inspect_notebook(str(source))
    if missing := sorted(set(parameters) - set(known)):
        raise ValueError(f"the notebook has no parameter {missing}; it has {sorted(known)}")
    name = Path(ast.literal_eval(known["script"]["default"])).name
    if name not in ("", Path(SOLUTION).name):  # a notebook with a different script
        script = Path(rehearsal.script).with_name(name)
        parameters["script"] = str(script)
        if not (PROJECT / script).exists():
            del parameters["script"]  # the notebook creates it
    return parameters


def _message(problem: Exception, rehearsal: Rehearsal, seconds: float) -> str:
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError
    from papermill.exceptions import PapermillExecutionError

    if isinstance(problem, NoSuchKernel):
        return (
            f"Jupyter has no kernel {problem.name!r}, which the notebook names: choose another "
            f"in JupyterLab (Kernel, Change Kernel) and save it, or install it: "
            f"{sys.executable} -m ipykernel install --user --name {shlex.quote(problem.name)}"
        )
    if isinstance(problem, PapermillExecutionError):
        return f"{problem.ename}: {problem.evalue}"
    if isinstance(problem, CellTimeoutError):
        limit = f"the cell took longer than {rehearsal.cell_minutes:g} minutes (--cell-minutes)"
        return _exceeded(rehearsal, seconds) or limit
    return f"{type(problem).__name__}: {problem}"


def _exceeded(rehearsal: Rehearsal, seconds: float) -> str:
    if 0 < rehearsal.minutes * 60 <= seconds:
        return f"the notebook took longer than {rehearsal.minutes:g} minutes (--minutes)"
    return ""


def _with_details(outcome: Outcome, since: str, stopped: bool) -> Outcome:
    """Add cells and runs to an outcome, and cancel jobs that a failed notebook left behind."""
    cells, runs = started_cells(outcome.executed), _printed_runs(outcome.executed)
    slow = sorted((cell for cell in cells if cell.seconds >= SLOW_S), key=lambda c: -c.seconds)
    error = outcome.error
    left = [
        run
        for run in runs
        if run.launched.get("launched_at", "") >= since and run.status in ("queued", "running")
    ]
    if outcome.status != OK and left:
        names = ", ".join(f"{run.name} ({run.status})" for run in left)
        launch.cancel_all(left)
        error += f"\nCancelled, because the notebook left them behind: {names}"
    return replace(
        outcome,
        error=error,
        runs=tuple(_row(run, since) for run in runs),
        slowest=tuple(slow[:SLOW_CELLS]),
        cell=cells[-1] if cells and stopped else None,
    )


def started_cells(executed: Path) -> list[Cell]:
    """Return the code cells that papermill started, in order; the last may not have ended."""
    import nbformat

    cells = []
    for cell in nbformat.read(executed, as_version=4).cells:
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time"):
            lines = [line for line in cell.source.splitlines() if line.strip()]
            code = [line for line in lines if not line.startswith(("#", "%"))]
            seconds = cell.metadata.papermill.duration or 0.0
            first = next(iter([*code, *lines]), "")
            cells.append(Cell(cell.execution_count, cell.get("id", ""), first, seconds))
    return cells


def _printed_runs(executed: Path) -> list[Run]:
    """Return the runs that the notebook's output names, by time.

    `launch` prints the name of every run, so runs of other people and notebooks in the same folder
    are excluded. `wait` also names runs that a run waits for: these are not the notebook's.
    """
    printed = re.sub(r" waits: .*", "", "\n".join(_outputs(executed)))
    runs = [run for run in all_runs() if re.search(rf"(?<!\w){run.name}(?!\.?\w)", printed)]
    for run in runs:
        launch.refresh(run)
    return sorted(runs, key=lambda run: (run.launched.get("launched_at", ""), _job_id(run)))


def _outputs(executed: Path) -> Iterator[str]:
    import nbformat

    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/plain", "")
            yield output.get("evalue", "")


def _job_id(run: Run) -> str:
    return str(run.launched.get("job_id", "")).zfill(12)


def _row(run: Run, since: str) -> dict[str, Any]:
    """Describe a run for the report; it is fresh if it was launched after `since`."""
    launched_at, began = run.launched.get("launched_at", ""), run.started.get("started_at", "")
    times = [datetime.fromisoformat(text) for text in (launched_at, began) if text]
    measured = {name: getattr(run.record, name, None) for name in ("wall_s", "images_per_s")}
    return measured | {
        "run": run.name,
        "status": run.status,
        "fresh": launched_at >= since,
        "gpus": run.gpus,
        "job_id": str(run.launched.get("job_id", "")),
        "host": run.started.get("host", ""),  # of the first process
        "machine": getattr(run.record, "machine", ""),
        "launched_at": launched_at,
        "waited_s": (times[1] - times[0]).total_seconds() if len(times) == 2 else None,
        "error": getattr(run.record, "error", ""),
        "folder": str(run.folder),
    }


def _to_html(executed: Path) -> str:
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    # Coalescing keeps the last state of a progress bar, as a terminal would.
    preprocessors = ["nbconvert.preprocessors.CoalesceStreamsPreprocessor"]
    # A page has no kernel, so a widget's static page is shown instead.
    mime_types = ["text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"]
    config = Config({"NbConvertBase": {"display_data_priority": mime_types}})
    exporter = HTMLExporter(preprocessors=preprocessors, config=config)
    return exporter.from_filename(str(executed))[0]


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


def _update_page(rehearsal: Rehearsal) -> None:
    try:
        write_page(rehearsal)
    except OSError as error:  # the notebooks still count, and the command prints their outcomes
        print(f"{rehearsal.report} could not be written: {error}", file=sys.stderr)


def describe_environment(site: sites.Site, command: str) -> dict[str, str]:
    """Describe what was executed and where, for later readers of the page."""
    names = ("executor", "time_min", "data_root") if site.executor == "local" else asdict(site)
    settings = {name: getattr(site, name) for name in names if name != "name"}
    slurm = ask("sinfo", "--version")
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    versions += [slurm.stdout.strip()] if slurm and slurm.stdout.strip() else []
    return {
        "command": command,
        "site": ", ".join(f"{name} {_text(value)}" for name, value in settings.items() if value),
        "notebooks run on": f"{platform.node()}, {os.cpu_count()} cores, {platform.platform()}",
        "runs folder": str(runs_root()),
        "versions": ", ".join(versions),
        "commit": git_sha() or "not a git clone",
    }


def _version(package: str) -> str:
    """Return a package's version, or "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _text(value: Any) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value)
