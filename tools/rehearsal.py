"""Execute the notebooks on a site before a course begins, and report on each."""

from __future__ import annotations

import ast
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.exercises import SOLUTION
from course.jobs import launch, sites
from course.runs import run
from tools.rehearsal_page import (
    FAILED,
    INTERRUPTED,
    NOT_RUN,
    OK,
    RUNNING,
    Outcome,
    Rehearsal,
    describe_environment,
    started_cells,
    used_runs,
    write_page,
)

FOLDER = run.PROJECT / "notebooks"
SLOW_CELLS, SLOW_S = 5, 1.0  # the report lists up to this many cells that took this long


def matching(pattern: str = "*") -> list[Path]:
    """Return notebooks whose name fits a shell pattern, with or without .ipynb, in course order."""
    paths = sorted(FOLDER.glob("*.ipynb"))
    order = [FOLDER / f"{lab.name}.ipynb" for lab in discovery.labs()]
    paths.sort(key=lambda path: order.index(path) if path in order else len(order))
    chosen = [path for path in paths if fnmatch(path.stem, pattern) or fnmatch(path.name, pattern)]
    if not chosen:
        names = ", ".join(path.stem for path in paths)
        raise ValueError(f"no notebook fits {pattern!r}: there are {names}")
    return chosen


def output_folder(site: str) -> Path:
    """Return the folder for a site's executed notebooks and report."""
    name = re.sub(r"[^\w.-]", "_", site).lstrip(".")
    return run.runs_root() / "notebooks" / (name or "_")


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
    folder = output_folder(site)
    outcomes = [_outcome(path, folder, NOT_RUN) for path in notebooks]
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
        outcomes[number] = execute(source, rehearsal)
        _update_page(rehearsal)
        on_outcome(outcomes[number])
        if rehearsal.interrupted:
            return rehearsal
    rehearsal.ended_at = _now()
    _update_page(rehearsal)
    return rehearsal


def _outcome(notebook: Path, folder: Path, status: str) -> Outcome:
    page = folder / f"{notebook.stem}.html"
    return Outcome(notebook.stem, status, folder / notebook.name, page)


def _update_page(rehearsal: Rehearsal) -> None:
    try:
        write_page(rehearsal)
    except OSError as error:  # the notebooks still count, and the command prints their outcomes
        print(f"{rehearsal.report} could not be written: {error}", file=sys.stderr)


def _now() -> str:
    return datetime.now().isoformat(timespec="seconds")


def execute(source: Path, rehearsal: Rehearsal) -> Outcome:
    """Execute one notebook with papermill, and write it with its output, also as HTML."""
    outcome = _outcome(source, rehearsal.folder, OK)
    start, since = time.monotonic(), _now()
    stopped = True
    try:
        for path in (outcome.executed, outcome.page):  # of an earlier rehearsal
            path.unlink(missing_ok=True)
        _run_papermill(source, outcome.executed, rehearsal)
        error = _exceeded(rehearsal, time.monotonic() - start)
        status = FAILED if error else OK
        stopped = False
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
        if not (run.PROJECT / script).exists():
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
    cells, runs = started_cells(outcome.executed), used_runs(outcome.executed, since)
    slow = sorted((cell for cell in cells if cell.seconds >= SLOW_S), key=lambda c: -c.seconds)
    error = outcome.error
    left = [used for used in runs if used.fresh and used.status in ("queued", "running")]
    if outcome.status != OK and left:
        launch.cancel_all([run.Run(used.folder) for used in left])
        names = ", ".join(f"{used.run} ({used.status})" for used in left)
        error += f"\nCancelled, because the notebook left them behind: {names}"
        runs = used_runs(outcome.executed, since)
    return replace(
        outcome,
        error=error,
        runs=tuple(runs),
        slowest=tuple(slow[:SLOW_CELLS]),
        cell=cells[-1] if cells and stopped else None,
    )


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
