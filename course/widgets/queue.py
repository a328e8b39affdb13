"""Show the queue as a live table of ipywidgets, with a run's log and a button to cancel it.

A thread updates it, so that it is live while a cell computes or waits. It reads the queue often
while something changes, rarely otherwise, and ends when the queue is empty.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from ipywidgets import HTML, Button, Dropdown, HBox, ToggleButton, VBox

from course.jobs import launch
from course.jobs.queue import EMPTY, as_lines, as_page, table
from course.jobs.slurm import SILENT
from course.runs import logs
from course.runs.run import Run, runs_root
from course.widgets import widget_view

if TYPE_CHECKING:
    import pandas as pd

FIRST_READ_S = 5  # a Slurm that does not answer must not block the kernel for longer
MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_GROWTH = 2.0, 30.0, 1.5
MAX_ROWS = 50
LOG_LINES = 20
STYLE = """<style>
.course-queue-log { display: flex; flex-direction: column-reverse; max-height: 260px;
  overflow: auto; border-left: 4px solid #0072B2; padding-left: 8px; }
.course-queue-log pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
</style>"""
_current: LiveQueue | None = None
_lock = threading.Lock()


class Queue:
    """The queued and running runs: a live table in a notebook, text elsewhere."""

    def table(self) -> pd.DataFrame:
        """Return the current queue, one row per run; see `course.jobs.queue.table`."""
        return table()

    def __repr__(self) -> str:
        return as_lines(table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the live table, HTML for a page without a kernel, and text for a terminal."""
        if getattr(get_ipython(), "kernel", None) is None:
            return {"text/plain": repr(self)}
        live = show(table)
        live.was_read.wait(FIRST_READ_S)
        widget = widget_view(live.box)
        return {**widget, "text/html": as_page(live.table), "text/plain": as_lines(live.table)}


def queue() -> Queue:
    """Show the queued and running runs.

    In a notebook the table updates itself, also while a different cell waits for a run.
    `queue().table()` returns it as a DataFrame.
    """
    return Queue()


def show(read: Callable[[], pd.DataFrame]) -> LiveQueue:
    """Start a live table, and stop the previous one.

    Args:
        read: returns the queue as a DataFrame like `course.jobs.queue.table`.
    """
    global _current
    with _lock:
        if _current is not None:
            _current.stop("A different cell shows the queue now.")
        context = _context_for_clicks()
        _current = live = context.run(LiveQueue, read)
        follow = {"target": context.run, "args": (live.follow,)}
        threading.Thread(name="queue", daemon=True, **follow).start()
        return live


def _context_for_clicks() -> Context:
    """Return a context for widgets whose buttons also respond while a cell computes.

    Front ends send clicks to a second loop of the kernel. But ipykernel 7.4 passes them to the loop
    that last handled the widget, which it reads from the message that is being answered; if the
    context only has that message's header, it cannot.
    """
    context, kernel = copy_context(), getattr(get_ipython(), "kernel", None)
    parent = getattr(kernel, "_shell_parent", None)
    if isinstance(parent, ContextVar):
        context.run(parent.set, context.get(parent, {}).get("header", {}))
    return context


class LiveQueue:
    """A table of the queue in `box`.

    `table` is the latest queue, None before the first; `was_read` is set after the first attempt.
    """

    def __init__(self, read: Callable[[], pd.DataFrame]) -> None:
        self.table: pd.DataFrame | None = None
        self.was_read = threading.Event()
        self._read, self._ended, self._wake = read, False, threading.Event()
        self._cancelling: set[str] = set()
        self._news: deque[str] = deque(maxlen=5)
        self._problem, self._pause_s, self._drawing = "", MIN_PAUSE_S, threading.RLock()
        self._page, self._log, self._footer = HTML(), HTML(), HTML()
        self._status = HTML(_status("Reading the queue …"))
        self.run = Dropdown(description="Run")
        self.log = ToggleButton(description="Log", tooltip="Show the end of the run's log")
        self.cancel = Button(description="Cancel", tooltip="Cancel the run")
        self._controls = HBox([self.run, self.log, self.cancel])
        self._controls.layout.display = "none"
        parts = [HTML(STYLE), self._page, self._footer, self._controls, self._log, self._status]
        self.box = VBox(parts)
        self.run.observe(lambda _: self._draw_controls(), names="value")
        self.log.observe(lambda _: self._draw_controls(), names="value")
        self.cancel.on_click(lambda _: self._start_cancel())
        self.box.observe(lambda change: change["new"] or self.stop(), names="comm")

    def follow(self) -> None:
        """Update the table until the queue is empty or `stop` is called."""
        while not self._ended and (pause_s := self.refresh()):
            if self._wake.wait(pause_s):
                self._wake.clear()
                self._pause_s = MIN_PAUSE_S
        self._ended = True

    def stop(self, reason: str = "") -> None:
        """Stop updating the table, and show the reason."""
        with self._drawing:
            self._ended = True
            self._wake.set()
            if reason:
                self._controls.layout.display = "none"
                self._footer.value = f"<small>As of {datetime.now():%H:%M:%S}.</small>"
                _set(self._status, _status(escape(reason)))

    def refresh(self) -> float:
        """Read the queue once and show it, with any problem.

        Returns:
            Seconds until the next refresh is useful; 0 if the queue is empty.
        """
        try:
            table = self._read()
            problem = f"{SILENT}; the next try follows." if SILENT in set(table["reason"]) else ""
        except Exception as error:  # any error: the table shows it, and tries again
            table, problem = self.table, f"The queue could not be read just now: {error}"
        with self._drawing:
            if self._ended:
                return 0
            before = self._changing_state()
            self._note_endings(table)
            self.table, self._problem = table, problem
            self._draw()
            if before != self._changing_state():
                self._pause_s = MIN_PAUSE_S
            else:
                self._pause_s = min(self._pause_s * PAUSE_GROWTH, MAX_PAUSE_S)
            empty = table is not None and table.empty and not problem
            self._draw_status(empty)
        self.was_read.set()
        return 0 if empty else self._pause_s

    def _changing_state(self) -> list[str]:
        """Return everything that can change, except elapsed times."""
        rows = [] if self.table is None else self.table.drop(columns="elapsed_s").values.tolist()
        return [self._problem, str(rows), self._log.value, *self._news]

    def _note_endings(self, table: pd.DataFrame | None) -> None:
        if table is None or self.table is None:
            return
        for name in self.table["name"][~self.table["name"].isin(table["name"])]:
            status = Run(runs_root() / name).status
            if status in ("queued", "running"):
                self._news.append(f"{name} has disappeared without a record.")
            else:
                end = "was cancelled" if status == "cancelled" else f"has ended: {status}"
                self._news.append(f"{name} {end}.")

    def _draw(self) -> None:
        shown = None if self.table is None else self.table.head(MAX_ROWS)
        if shown is None or shown.empty:
            names = []
            _set(self._page, "")
        else:
            names = shown["name"].tolist()
            cancelling = shown["name"].isin(self._cancelling)
            reasons = shown["reason"].mask(cancelling, "cancelling was requested")
            _set(self._page, as_page(shown.assign(reason=reasons)))
        self._controls.layout.display = "" if names else "none"
        if list(self.run.options) != names:
            selected = self.run.value
            self.run.options = names
            self.run.value = selected if selected in names else next(iter(names), None)
        self._draw_controls()

    def _draw_controls(self) -> None:
        name, is_open = self.run.value, self.log.value
        self.log.description = "Hide log" if is_open else "Log"
        self.cancel.disabled = name in self._cancelling
        self.cancel.description = "Cancelling" if self.cancel.disabled else "Cancel"
        _set(self._log, _log(Run(runs_root() / name)) if is_open and name else "")

    def _draw_status(self, empty: bool) -> None:
        footer = ""
        if self.table is not None and not empty:
            states = self.table["state"].value_counts().items()
            counts = ", ".join(f"{count} {state}" for state, count in states)
            hidden = len(self.table) - MAX_ROWS
            more = f" {hidden} of them are not shown: see queue().table()." if hidden > 0 else ""
            footer = (
                f"<small>{escape(counts)}.{more} As of {datetime.now():%H:%M:%S}; the next update "
                f"is in {self._pause_s:.0f} s.</small>"
            )
        self._footer.value = footer
        last = f"{EMPTY} Run the cell again after the next launch." if empty else self._problem
        lines = [escape(line) for line in (*self._news, last) if line]
        _set(self._status, _status("<br>".join(lines)))

    def _start_cancel(self) -> None:
        name = self.run.value
        self._cancelling.add(name)
        with self._drawing:
            self._draw()
        threading.Thread(target=self._cancel, args=(name,), daemon=True).start()

    def _cancel(self, name: str) -> None:
        try:
            launch.cancel(Run(runs_root() / name))
        except Exception as error:  # any error: the table shows it
            with self._drawing:
                self._cancelling.discard(name)
                self._news.append(f"{name} could not be cancelled: {error}")
                self._draw()
        self._wake.set()


def _log(run: Run) -> str:
    """Return the end of a run's output and errors as HTML."""
    try:
        parts = {
            "output": logs.text(run, lines=LOG_LINES),
            "errors": logs.text(run, err=True, lines=LOG_LINES),
        }
    except OSError as error:
        parts = {"log": f"cannot be read just now: {error}"}
    texts = [f"<b>{k}</b><pre>{escape(v.strip())}</pre>" for k, v in parts.items() if v.strip()]
    folder = run.logs[0].parent if run.logs else run.folder / "logs"
    end = f"<small>The last lines; the complete log is in {escape(str(folder))}</small>"
    body = "".join([*texts, end]) if texts else "No log yet: the run has printed nothing so far."
    name = escape(run.name)
    return (
        f'<div class="course-queue-log" role="region" tabindex="0" aria-label="log of {name}">'
        f"<div>{body}</div></div>"
    )


def _status(content: str) -> str:
    # A screen reader announces changes.
    return f'<div role="status" aria-live="polite">{content}</div>'


def _set(widget: HTML, value: str) -> None:
    if widget.value != value:  # otherwise a screen reader would announce it again
        widget.value = value
