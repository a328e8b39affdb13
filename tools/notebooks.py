"""Execute the notebooks on a site before a course begins, and report on each."""

from __future__ import annotations

import ast
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.exercises import SOLUTION
from course.jobs import launch, sites
from course.runs.files import write_atomically
from course.runs.run import PROJECT, all_runs, git_sha, runs_root
from course.text import printable

FOLDER = PROJECT / "notebooks"
TEMPLATE = Path(__file__).with_name("notebooks.html.j2")
NOT_RUN, OK, FAILED, INTERRUPTED = "not run", "ok", "failed", "interrupted"


@dataclass(frozen=True)
class Cell:
    """A code cell: its number in In [ ], id, and first line."""

    number: int | None
    cell_id: str
    line: str


@dataclass(frozen=True)
class Outcome:
    """The result of one notebook: not run, ok, failed or interrupted."""

    notebook: str
    status: str
    executed: Path
    page: Path
    seconds: float = 0.0
    error: str = ""
    cell: Cell | None = None  # where it stopped, unless it is ok


@dataclass(frozen=True)
class Options:
    """How notebooks are executed: their parameters, and the limit per cell."""

    site: str = "local"
    script: str = SOLUTION
    quick: bool = False
    cell_minutes: float = 60


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


def report_path(site: str) -> Path:
    """Return the report's file; the executed notebooks are next to it."""
    name = re.sub(r"[^\w.-]", "_", site).lstrip(".") or "_"
    return runs_root() / "notebooks" / name / "report.html"


def execute_all(
    notebooks: Sequence[Path],
    *,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    **options: Any,
) -> list[Outcome]:
    """Execute notebooks one after another, and write the report before the first and after each.

    A failure does not stop the others; Ctrl-C does. Jobs that a failed notebook leaves behind are
    cancelled.

    Args:
        on_outcome: called after each notebook.
        options: fields of Options. A notebook whose script has a different name than `script` uses
            the file of that name in the same folder. A notebook with a cell that takes longer than
            `cell_minutes` has failed.

    Raises:
        ValueError: no such site, a limit that is out of range, or a folder that cannot be written.
    """
    chosen = Options(**options)
    sites.get(chosen.site)
    if not 0 < chosen.cell_minutes < math.inf:
        raise ValueError(f"cell_minutes={chosen.cell_minutes:g}: expected a number above 0")
    report = report_path(chosen.site)
    outcomes = [
        Outcome(
            path.stem, NOT_RUN, report.with_name(path.name), report.with_name(f"{path.stem}.html")
        )
        for path in notebooks
    ]
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        write_page(report, outcomes, chosen)
    except OSError as error:
        raise ValueError(
            f"{report} cannot be written: {error.strerror}. Make room there, or set "
            f"COURSE_RUNS to a folder that you may write"
        ) from error
    for number, source in enumerate(notebooks):
        outcomes[number] = _execute(source, outcomes[number], chosen)
        try:
            write_page(report, outcomes, chosen)
        except OSError as error:  # the notebooks still count, and the command prints their outcomes
            print(f"{report} could not be written: {error}", file=sys.stderr)
        on_outcome(outcomes[number])
        if outcomes[number].status == INTERRUPTED:
            break
    return outcomes


def _execute(source: Path, outcome: Outcome, options: Options) -> Outcome:
    """Execute one notebook with papermill, and write it with its output, also as HTML."""
    start, since = time.monotonic(), datetime.now().isoformat(timespec="seconds")
    status, error = OK, ""
    try:
        for path in (outcome.executed, outcome.page):  # of an earlier execution
            path.unlink(missing_ok=True)
        _run_papermill(source, outcome.executed, options)
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted from the keyboard"
    except Exception as problem:  # a dead kernel, a full disk: the other notebooks still count
        status, error = FAILED, _message(problem, options)
    outcome = replace(outcome, status=status, error=error, seconds=time.monotonic() - start)
    if not outcome.executed.exists():  # it failed before its first cell
        return outcome
    try:
        if status != OK:
            outcome = replace(
                outcome,
                cell=last_started_cell(outcome.executed),
                error=error + _cancel_left_runs(outcome.executed, since),
            )
        outcome.page.write_text(_to_html(outcome.executed))
    except Exception as problem:  # a notebook that a full disk cut short
        error = f"{outcome.error}\nThe executed notebook cannot be shown: {problem}".strip()
        outcome = replace(outcome, status=FAILED if status == OK else status, error=error)
    return outcome


def _run_papermill(source: Path, target: Path, options: Options) -> None:
    import papermill
    from traitlets.config import Config

    limit_s = math.ceil(options.cell_minutes * 60)
    papermill.execute_notebook(
        str(source),
        str(target),
        _parameters(source, options),
        cwd=str(FOLDER),
        execution_timeout=limit_s,  # for each cell
        start_timeout=limit_s,  # to start the kernel: 60 s are not enough on a busy machine
        # Other users of this machine could read unencrypted messages.
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
    )


def _parameters(source: Path, options: Options) -> dict[str, Any]:
    """Return the notebook's parameters. Raises ValueError if it lacks one."""
    import papermill

    parameters = {"quick": options.quick, "script": options.script, "site": options.site}
    known = papermill.inspect_notebook(str(source))
    if missing := sorted(set(parameters) - set(known)):
        raise ValueError(f"the notebook has no parameter {missing}; it has {sorted(known)}")
    name = Path(ast.literal_eval(known["script"]["default"])).name
    if name not in ("", Path(SOLUTION).name):  # a notebook with a different script
        script = Path(options.script).with_name(name)
        parameters["script"] = str(script)
        if not (PROJECT / script).exists():
            del parameters["script"]  # the notebook creates it
    return parameters


def _message(problem: Exception, options: Options) -> str:
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
        return f"the cell took longer than {options.cell_minutes:g} minutes (--cell-minutes)"
    return f"{type(problem).__name__}: {problem}"


def last_started_cell(executed: Path) -> Cell | None:
    """Return the last code cell that papermill started."""
    import nbformat

    for cell in reversed(nbformat.read(executed, as_version=4).cells):
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time"):
            lines = [line for line in cell.source.splitlines() if line.strip()]
            code = [line for line in lines if not line.startswith(("#", "%"))]
            first = next(iter([*code, *lines]), "")
            return Cell(cell.execution_count, cell.get("id", ""), first)
    return None


def _cancel_left_runs(executed: Path, since: str) -> str:
    """Cancel runs that the notebook launched and left behind; return a line that names them.

    `launch` prints the name of every run, so runs of other people and notebooks in the same folder
    are excluded. `wait` also names runs that a run waits for: these are not the notebook's.
    """
    printed = re.sub(r" waits: .*", "", "\n".join(_outputs(executed)))
    left = [
        run
        for run in all_runs()
        if run.launched.get("launched_at", "") >= since
        and re.search(rf"(?<!\w){run.name}(?!\.?\w)", printed)
        and launch.refresh(run) in ("queued", "running")
    ]
    names = ", ".join(f"{run.name} ({run.status})" for run in left)
    launch.cancel(left)
    return f"\nCancelled, because the notebook left them behind: {names}" if left else ""


def _outputs(executed: Path) -> Iterator[str]:
    import nbformat

    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/plain", "")
            yield output.get("evalue", "")


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


def write_page(report: Path, outcomes: Sequence[Outcome], options: Options) -> None:
    """Write the report as one file. Raises OSError if its folder cannot be written."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["plain"] = printable
    commit, day = git_sha() or "not a git clone", datetime.now().isoformat(" ", "seconds")
    about = f"{day}, commit {commit}: {shlex.join(['course', *sys.argv[1:]])}"
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_atomically(report, template.render(outcomes=outcomes, site=options.site, about=about))
