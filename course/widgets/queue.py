"""Show the queue as a live table of ipywidgets, with a button to cancel a run.

A thread updates it, so that it is live while a cell computes or waits. The thread ends when the
queue is empty.
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
from ipywidgets import HTML, Button, Dropdown, HBox, VBox

from course.charts import widget_view
from course.jobs import launch
from course.jobs.queue import EMPTY, as_lines, as_page, table
from course.jobs.slurm import SILENT
from course.runs.run import Run, runs_root

if TYPE_CHECKING:
    import pandas as pd

FIRST_READ_S = 5  # a Slurm that does not answer must not block the kernel for longer
PAUSE_S = 5.0  # between two updates
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
        self._drawing = threading.RLock()
        self._page, self._footer = HTML(), HTML()
        self._status = HTML(_status("Reading the queue …"))
        self.run = Dropdown(description="Run")
        self.cancel = Button(description="Cancel", tooltip="Cancel the run")
        self._controls = HBox([self.run, self.cancel])
        self._controls.layout.display = "none"
        self.box = VBox([self._page, self._footer, self._controls, self._status])
        self.run.observe(lambda _: self._draw_controls(), names="value")
        self.cancel.on_click(lambda _: self._start_cancel())
        self.box.observe(lambda change: change["new"] or self.stop(), names="comm")

    def follow(self) -> None:
        """Update the table until the queue is empty or `stop` is called."""
        while not self._ended and self.refresh():
            self._wake.wait(PAUSE_S)
            self._wake.clear()
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

    def refresh(self) -> bool:
        """Read the queue once and show it, with any problem; return False if it is empty."""
        try:
            table = self._read()
            problem = f"{SILENT}; the next try follows." if SILENT in set(table["reason"]) else ""
        except Exception as error:  # any error: the table shows it, and tries again
            table, problem = self.table, f"The queue could not be read just now: {error}"
        with self._drawing:
            if self._ended:
                return False
            self._note_endings(table)
            self.table = table
            is_empty = table is not None and table.empty and not problem
            self._draw()
            last = f"{EMPTY} Run the cell again after the next launch." if is_empty else problem
            lines = [escape(line) for line in (*self._news, last) if line]
            _set(self._status, _status("<br>".join(lines)))
        self.was_read.set()
        return not is_empty

    def _note_endings(self, table: pd.DataFrame | None) -> None:
        if table is None or self.table is None:
            return
        for name in self.table["name"][~self.table["name"].isin(table["name"])]:
            status = Run(runs_root() / name).status
            end = "was cancelled" if status == "cancelled" else f"has ended: {status}"
            self._news.append(f"{name} {end}.")

    def _draw(self) -> None:
        names, page, footer = [], "", ""
        if self.table is not None and not self.table.empty:
            names = self.table["name"].tolist()
            cancelling = self.table["name"].isin(self._cancelling)
            reasons = self.table["reason"].mask(cancelling, "cancelling was requested")
            page = as_page(self.table.assign(reason=reasons))
            states = self.table["state"].value_counts().items()
            counts = ", ".join(f"{count} {state}" for state, count in states)
            footer = f"<small>{escape(counts)}. As of {datetime.now():%H:%M:%S}.</small>"
        _set(self._page, page)
        self._footer.value = footer
        self._controls.layout.display = "" if names else "none"
        if list(self.run.options) != names:
            selected = self.run.value
            self.run.options = names
            self.run.value = selected if selected in names else next(iter(names), None)
        self._draw_controls()

    def _draw_controls(self) -> None:
        self.cancel.disabled = self.run.value in self._cancelling
        self.cancel.description = "Cancelling" if self.cancel.disabled else "Cancel"

    def _start_cancel(self) -> None:
        name = self.run.value
        self._cancelling.add(name)
        with self._drawing:
            self._draw()
        threading.Thread(target=self._cancel, args=(name,), daemon=True).start()

    def _cancel(self, name: str) -> None:
        try:
            launch.cancel([Run(runs_root() / name)])
        except Exception as error:  # any error: the table shows it
            with self._drawing:
                self._cancelling.discard(name)
                self._news.append(f"{name} could not be cancelled: {error}")
                self._draw()
        self._wake.set()


def _status(content: str) -> str:
    # A screen reader announces changes.
    return f'<div role="status" aria-live="polite">{content}</div>'


def _set(widget: HTML, value: str) -> None:
    if widget.value != value:  # otherwise a screen reader would announce it again
        widget.value = value
