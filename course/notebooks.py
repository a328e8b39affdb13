"""Execute the notebooks as tests, as a workshop's engineer does the day before."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from course.runs import PROJECT, runs_root

FOLDER = PROJECT / "notebooks"


@dataclass(frozen=True)
class Outcome:
    """One executed notebook: status ok or failed, and where its output lies."""

    notebook: str
    status: str
    seconds: float
    executed: Path
    page: Path
    error: str = ""


def matching(pattern: str = "*") -> list[Path]:
    """Notebooks whose name fits a shell pattern, with or without .ipynb.

    Raises:
        ValueError: none fits; the message lists those there are.
    """
    known = sorted(FOLDER.glob("*.ipynb"))
    found = [path for path in known if fnmatch(path.stem, pattern) or fnmatch(path.name, pattern)]
    if not found:
        names = ", ".join(path.stem for path in known)
        raise ValueError(f"no notebook fits {pattern!r}: there are {names}")
    return found


def execute(path: Path, parameters: dict[str, Any]) -> Outcome:
    """Execute one notebook with papermill, and write it with its output, also as HTML.

    Raises:
        ValueError: a parameter that the notebook does not have.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    known = papermill.inspect_notebook(str(path))
    if unknown := set(parameters) - set(known):
        raise ValueError(f"{path.name} has no parameter {sorted(unknown)}; it has {sorted(known)}")
    target = runs_root() / "notebooks" / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    began, status, error = time.monotonic(), "ok", ""
    try:
        papermill.execute_notebook(
            str(path), str(target), parameters, cwd=str(FOLDER), progress_bar=True
        )
    except PapermillExecutionError as problem:
        status, error = "failed", f"{problem.ename}: {problem.evalue} (cell {problem.exec_count})"
    seconds = time.monotonic() - began
    return Outcome(path.stem, status, seconds, target, _to_html(target), error)


def _to_html(executed: Path) -> Path:
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    page = executed.with_suffix(".html")
    # Coalescing keeps the last state of a progress bar, as a terminal would.
    preprocessors = ["nbconvert.preprocessors.CoalesceStreamsPreprocessor"]
    # A page has no kernel, so a widget's plain page is shown in its place.
    shown = ["text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"]
    config = Config({"NbConvertBase": {"display_data_priority": shown}})
    exporter = HTMLExporter(preprocessors=preprocessors, config=config)
    body, _ = exporter.from_filename(str(executed))
    page.write_text(body)
    return page
