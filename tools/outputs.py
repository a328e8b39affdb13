"""Give the site's notebooks the outputs of their execution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from course.runs.run import runs_root

NO_OUTPUTS = "This page has no outputs: its notebook was not executed for this site."
RUN_IT = "To do this lab, [install the course](../README.md#start)."
SOURCE = (
    "The outputs are from {day}, executed with {parameters}. Yours will differ. Scripts have their "
    "solutions here; cells with blanks have none, so their checks fail."
)
STOPPED = " The execution stopped before the notebook's end."


def newest_execution() -> Path | None:
    """Return the folder to which `course notebooks` last wrote, or None if it never ran."""
    executed = runs_root().glob("notebooks/*/*.ipynb")
    newest = max(executed, key=lambda path: path.stat().st_mtime, default=None)
    return newest.parent if newest else None


def with_outputs(notebook: NotebookNode, executed: NotebookNode | None) -> NotebookNode:
    """Return a notebook with the outputs of its execution, and a note on them after its first cell.

    A code cell that has changed since the execution has no outputs.
    """
    cells = {}
    if executed:
        # It keeps the last state of a progress bar, as a terminal would.
        executed, _ = CoalesceStreamsPreprocessor().preprocess(executed, {})
        cells = {cell.id: cell for cell in executed.cells}
    for cell in notebook.cells:
        found = cells.get(cell.id, {})
        if cell.cell_type == "code" and found.get("source") == cell.source:
            cell.outputs = found.outputs
    text = describe(executed.metadata.papermill) if executed else NO_OUTPUTS
    note = nbformat.v4.new_markdown_cell(f"```{{note}}\n{RUN_IT} {text}\n```")
    notebook.cells.insert(1, note)
    return notebook


def describe(execution: Mapping) -> str:
    """Return when and with which parameters papermill executed a notebook."""
    parameters = (f"`{name}={value!r}`" for name, value in execution["parameters"].items())
    text = SOURCE.format(day=execution["start_time"][:10], parameters=", ".join(parameters))
    return text + ("" if execution["end_time"] and not execution["exception"] else STOPPED)
