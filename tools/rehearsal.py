"""Execute the notebooks as a workshop's engineer does the day before, and report on every one."""

from __future__ import annotations

import ast
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.exercises import SOLUTION
from course.jobs import launch, sites
from course.jobs.warm import client
from course.runs import run
from course.text import ON_PAPER
from tools.rehearsal_page import (
    FAILED,
    INTERRUPTED,
    NOT_RUN,
    OK,
    RUNNING,
    Outcome,
    Rehearsal,
    begun_cells,
    facts,
    used_runs,
    write_page,
)

FOLDER = run.PROJECT / "notebooks"
SLOWEST, SLOW_S = 5, 1.0  # the report names so many cells of each notebook, if they took so long


def matching(pattern: str = "*") -> list[Path]:
    """Notebooks whose name fits a shell pattern, with or without .ipynb.

    Raises:
        ValueError: none fits; the message lists those there are.
    """
    there = sorted(FOLDER.glob("*.ipynb"))
    of_labs = [FOLDER / f"{lab.name}.ipynb" for lab in discovery.labs()]
    known = [*filter(there.__contains__, of_labs), *(each for each in there if each not in of_labs)]
    found = [path for path in known if fnmatch(path.stem, pattern) or fnmatch(path.name, pattern)]
    if not found:
        names = ", ".join(path.stem for path in known)
        raise ValueError(f"no notebook fits {pattern!r}: there are {names}")
    return found


def output_folder(site: str) -> Path:
    """Where a site's rehearsal leaves its notebooks and report: a folder of its own."""
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
    """Execute notebooks, one after the other, and write the report before and after each.

    One that fails does not stop the others. Ctrl-C ends the one that is executed, and the
    rehearsal with it. Jobs that a notebook leaves behind which did not pass are cancelled.

    Args:
        script: what notebooks launch; one whose own script has another name takes that, beside it.
        cell_minutes: a notebook whose cell takes longer is ended, and has failed.
        minutes: the same for a notebook that takes longer; 0: no limit.
        command: the command line, for the report.
        on_outcome: called after each notebook.

    Raises:
        ValueError: no such site, a time that is not above 0, or a folder that cannot be written.
    """
    place = sites.get(site)
    _check_limits(cell_minutes, minutes)
    folder, known = output_folder(site), facts(place, command)
    waiting = tuple(_waiting(path, folder) for path in notebooks)
    limits = cell_minutes, minutes
    rehearsal = Rehearsal(site, script, quick, *limits, folder, known, _now(), waiting)
    _begin(rehearsal)
    for number, source in enumerate(notebooks):
        rehearsal = _with_next(rehearsal, number, source, on_outcome)
        if rehearsal.interrupted:
            return rehearsal
    rehearsal = replace(rehearsal, ended_at=_now())
    _write(rehearsal)
    return rehearsal


def _waiting(notebook: Path, folder: Path) -> Outcome:
    page = folder / f"{notebook.stem}.html"
    return Outcome(notebook.stem, NOT_RUN, folder / notebook.name, page)


def _check_limits(cell_minutes: float, minutes: float) -> None:
    if not 0 < cell_minutes < math.inf:
        raise ValueError(f"cell_minutes={cell_minutes:g}: it must be above 0")
    if not 0 <= minutes < math.inf:
        raise ValueError(f"minutes={minutes:g}: expected 0, which is no limit, or more")


def _with_next(
    rehearsal: Rehearsal, number: int, source: Path, on_outcome: Callable[[Outcome], None]
) -> Rehearsal:
    """The rehearsal with this notebook executed; the report tells meanwhile that it is."""
    rehearsal = rehearsal.but(number, replace(rehearsal.outcomes[number], status=RUNNING))
    _write(rehearsal)
    rehearsal = rehearsal.but(number, execute(source, rehearsal))
    _write(rehearsal)
    on_outcome(rehearsal.outcomes[number])
    return rehearsal


def execute(source: Path, rehearsal: Rehearsal) -> Outcome:
    """Execute one notebook with papermill, and write it with its output, also as HTML."""
    target = rehearsal.folder / source.name
    outcome = Outcome(source.stem, OK, target, target.with_suffix(".html"))
    began, since, was_stopped = time.monotonic(), _now(), True
    try:
        for old in (target, outcome.page):  # they would be taken for this one's
            old.unlink(missing_ok=True)
        _papermill(source, target, rehearsal)
        error = _overrun(rehearsal, time.monotonic() - began)
        status = FAILED if error else OK
        was_stopped = False
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted from the keyboard"
    except Exception as problem:  # a dead kernel, a full disk: the other notebooks still count
        status, error = FAILED, _words(problem, rehearsal, time.monotonic() - began)
    outcome = replace(outcome, status=status, error=error, seconds=time.monotonic() - began)
    if not target.exists():  # it failed before its first cell
        return outcome
    try:
        outcome = _examined(outcome, since, was_stopped)
        _to_html(target)
    except Exception as problem:  # a notebook cut short by a full disk, a page that fails
        told = f"{error}\nThe executed notebook cannot be shown: {problem}".strip()
        outcome = replace(outcome, status=FAILED if status == OK else status, error=told)
    return outcome


def _papermill(source: Path, target: Path, rehearsal: Rehearsal) -> None:
    import papermill

    from course.jobs.warm import kernels
    from tools import engine

    wanted = {"quick": rehearsal.quick, "script": rehearsal.script, "site": rehearsal.site}
    known = papermill.inspect_notebook(str(source))
    if unknown := set(wanted) - set(known):
        raise ValueError(f"it has no parameter {sorted(unknown)}; it has {sorted(known)}")
    own = Path(ast.literal_eval(known["script"]["default"])).name
    if own not in ("", Path(SOLUTION).name):  # a notebook of another script: the one beside it
        beside = Path(rehearsal.script).with_name(own)
        if (run.PROJECT / beside).exists():  # else it makes one, at its own place
            wanted["script"] = str(beside)
        else:
            del wanted["script"]
    limit_s = math.ceil(rehearsal.cell_minutes * 60)
    deadline = time.monotonic() + (rehearsal.minutes * 60 or math.inf)

    def seconds_left(cell: Any) -> int:
        return max(1, math.ceil(min(limit_s, deadline - time.monotonic())))

    with kernels.forked(), _on_paper():
        papermill.execute_notebook(
            str(source),
            str(target),
            wanted,
            engine_name=engine.NAME,
            cwd=str(FOLDER),
            progress_bar=True,
            timeout_func=seconds_left,  # of each cell
            start_timeout=limit_s,  # of the kernel: 60 s are not enough on a busy machine
            config=kernels.encrypted(),
        )


@contextmanager
def _on_paper() -> Iterator[None]:
    """Kernels that are started meanwhile draw pictures for one theme: their pages have no other."""
    before = os.environ.get(ON_PAPER)
    os.environ[ON_PAPER] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ON_PAPER]
        else:
            os.environ[ON_PAPER] = before


def _words(problem: Exception, rehearsal: Rehearsal, seconds: float) -> str:
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
        return _overrun(rehearsal, seconds) or limit
    return f"{type(problem).__name__}: {problem}"


def _overrun(rehearsal: Rehearsal, seconds: float) -> str:
    """A sentence if a notebook took longer than --minutes, else ""."""
    if 0 < rehearsal.minutes * 60 <= seconds:
        return f"the notebook took longer than {rehearsal.minutes:g} minutes (--minutes)"
    return ""


def _examined(outcome: Outcome, since: str, was_stopped: bool) -> Outcome:
    """The outcome with its cells and runs; jobs that nobody waits for any more are cancelled."""
    cells, left = begun_cells(outcome.executed), []
    slow = [cell for cell in cells if cell.seconds >= SLOW_S]
    if outcome.status != OK:
        for used in used_runs(outcome.executed, since):
            if used.fresh and used.status in ("queued", "running"):
                left.append(f"{used.run} ({used.status})")
                launch.cancel(run.Run(used.folder))
    told = f"\nCancelled, since it left them behind: {', '.join(left)}" if left else ""
    return replace(
        outcome,
        error=outcome.error + told,
        runs=tuple(used_runs(outcome.executed, since)),
        slowest=tuple(sorted(slow, key=lambda cell: -cell.seconds)[:SLOWEST]),
        cell=cells[-1] if cells and was_stopped else None,
    )


def _begin(rehearsal: Rehearsal) -> None:
    try:
        rehearsal.folder.mkdir(parents=True, exist_ok=True)
        write_page(rehearsal)
    except OSError as error:
        raise ValueError(
            f"{rehearsal.report} cannot be written: {error.strerror}. Make room there, or set "
            f"COURSE_RUNS to a folder that you may write"
        ) from error
    if len(rehearsal.outcomes) > 1:
        client.start_server()  # which forks the kernels to come, and their jobs


def _write(rehearsal: Rehearsal) -> None:
    try:
        write_page(rehearsal)
    except OSError as error:  # the notebooks still count, and the command prints how they went
        print(f"{rehearsal.report} could not be written: {error}", file=sys.stderr)


def _now() -> str:
    return datetime.now().isoformat(timespec="seconds")


def _to_html(executed: Path) -> None:
    body, _ = _exporter().from_filename(str(executed))
    executed.with_suffix(".html").write_text(body)


@cache  # its templates are compiled once
def _exporter() -> Any:
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    # Coalescing keeps the last state of a progress bar, as a terminal would.
    preprocessors = ["nbconvert.preprocessors.CoalesceStreamsPreprocessor"]
    # A page has no kernel, so a widget's plain page is shown in its place.
    shown = ["text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"]
    config = Config({"NbConvertBase": {"display_data_priority": shown}})
    return HTMLExporter(preprocessors=preprocessors, config=config)
