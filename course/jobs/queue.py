"""The queue: the runs that wait or compute, why they wait, and their progress."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from course.jobs.launch import refresh, steps_done
from course.jobs.plan import engine
from course.runs.run import Run, all_jobs, is_readable
from course.text import clock, printable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("job", "name", "site", "state", "reason", "elapsed_s", "nodes", "gpus", "step", "steps")
EMPTY = "The queue is empty."
SLOW = "The queue could not be read so soon. Run the cell again, or look at queue().table()."


def table() -> pd.DataFrame:
    """Return the runs that wait or compute, in the order of their launch.

    Columns: job, name, site, state (pending, running, or another state of Slurm in lower case),
    reason (why it waits, or where it computes), elapsed_s (since it began to compute), nodes
    (requested, or in use), gpus (0 if it computes on this machine's CPU), step (completed ones),
    steps (0 if the script reports none). elapsed_s and nodes may be missing. A run that turns out
    to be over is recorded, and left out.

    Raises:
        JobError: as `refresh`.
    """
    import pandas as pd

    rows = sorted(_rows(), key=lambda row: row.pop("order"))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"elapsed_s": "Int64", "nodes": "Int64"}
    )


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return the queue with every cell as text, and times in squeue's format."""
    shown = table[["job", "name", "site", "state", "reason"]].copy()
    elapsed = table["elapsed_s"]
    shown["elapsed"] = elapsed.fillna(0).map(clock).where(elapsed.notna(), "?")
    shown["nodes"] = table["nodes"].astype("string").fillna("?")
    shown["GPUs"] = table["gpus"].astype(str)
    steps = zip(table["step"], table["steps"])
    shown["steps"] = [f"{step:,} of {all_:,}" if all_ else "–" for step, all_ in steps]
    return shown.apply(lambda column: column.map(_on_one_line))


def _on_one_line(cell: object) -> str:
    return " ".join(printable(str(cell)).split())


def as_lines(table: pd.DataFrame | None) -> str:
    """Return the queue for a terminal; None: it could not be read in time."""
    if table is None:
        return SLOW
    return EMPTY if table.empty else as_text(table).to_string(index=False)


def as_page(table: pd.DataFrame | None) -> str:
    """Return the queue as escaped HTML, for a page without a kernel."""
    if table is None or table.empty:
        return f"<p>{as_lines(table)}</p>"
    return as_text(table).to_html(index=False, justify="left")


def _rows() -> list[dict[str, Any]]:
    unfinished = (run for run in all_jobs() if not (run.folder / "record.json").exists())
    open_runs = [*filter(is_readable, unfinished)]
    by_engine: dict[Any, list[Run]] = {}
    for run in open_runs:
        by_engine.setdefault(engine(run), []).append(run)
    states: dict[str, dict[str, Any]] = {}
    for module, runs in by_engine.items():
        states |= module.queue_states(runs)
    rows = []
    for run in open_runs:
        with suppress(FileNotFoundError):  # a launch was refused meanwhile, and its folder removed
            state = states.get(run.name) or _record_ending(run)
            if state and run.record is None:
                rows.append(_row(run, state))
    return rows


def _record_ending(run: Run) -> dict[str, Any] | None:
    """Record the end of a run that its executor no longer lists; return its state if it goes on."""
    status = refresh(run)
    if status not in ("queued", "running"):
        return None
    # It was requeued just now, or has just started: the next call knows more.
    state = "pending" if status == "queued" else "running"
    return {"state": state, "reason": "", "elapsed_s": None, "nodes": None}


def _row(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    request = run.launched
    # A requeued job restarts: its steps so far do not count.
    step = 0 if state["state"] == "pending" else steps_done(run)
    written = (run.folder / "launch.json").stat().st_mtime_ns  # once, at its launch
    return {
        "order": (str(request.get("launched_at", "")), written),
        "job": str(request.get("job_id", "")),
        "name": run.name,
        "site": request.get("site", ""),
        "gpus": request.get("gpus", 1),
        **state,
        "step": step,
        "steps": run.total_steps if run.reports_steps else 0,
    }
