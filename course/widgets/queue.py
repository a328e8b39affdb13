"""The queue as a live table of ipywidgets: it reads itself anew in a thread of its own.

A thread, so that it goes on while a cell computes or waits. It reads often while something
changes and seldom while nothing does, and ends when nothing is left to show.
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
from ipywidgets import HTML, VBox

from course.jobs import launch
from course.jobs.queue import EMPTY, as_lines, as_page, as_text, table
from course.jobs.slurm import SILENT
from course.widgets.queue_row import STYLE, Row, head

if TYPE_CHECKING:
    import pandas as pd

PATIENCE_S = 5  # for the first table; a Slurm that does not answer must not hold the kernel up
FIRST_S, SLOWEST_S, SLOWER = 2.0, 30.0, 1.5  # pause after a change, at most, and its growth
MOST_ROWS = 50
_current: LiveQueue | None = None
_one = threading.Lock()


class Queue:
    """The runs that wait or compute: a live table in a notebook, text elsewhere."""

    def table(self) -> pd.DataFrame:
        """The queue as it is now, a row a run; see `course.jobs.queue.table`."""
        return table()

    def __repr__(self) -> str:
        return as_lines(table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The live table; for a page without a kernel, HTML; for a terminal, text."""
        if not _in_kernel():
            return {"text/plain": repr(self)}
        live = show(table)
        live.read.wait(PATIENCE_S)
        form = live.box._repr_mimebundle_() or {}
        return {**form, "text/html": as_page(live.table), "text/plain": as_lines(live.table)}


def queue() -> Queue:
    """Show the runs that wait or compute, as long as there are any.

    In a notebook the table reads itself anew, also while another cell waits for a run.
    `queue().table()` is the same as a DataFrame.
    """
    return Queue()


def show(read: Callable[[], pd.DataFrame]) -> LiveQueue:
    """Start a live table; one that was live before stands still from now on.

    Args:
        read: the queue as a DataFrame, as `course.jobs.queue.table` gives it.
    """
    global _current
    with _one:
        if _current is not None:
            _current.stop("Another cell shows the queue now.")
        context = _beside_cells()
        _current = live = context.run(LiveQueue, read)
        live.start(context)
        return live


def _beside_cells() -> Context:
    """A context for widgets whose buttons answer also while a cell computes.

    Front ends send clicks to a loop of the kernel's beside the one that computes cells. But
    ipykernel 7.4 hands them to the loop that last spoke for the widget, which it reads from the
    whole message that is being answered; where it has the header alone, it cannot.
    """
    context, kernel = copy_context(), getattr(get_ipython(), "kernel", None)
    answered = getattr(kernel, "_shell_parent", None)
    if isinstance(answered, ContextVar):
        context.run(answered.set, context.get(answered, {}).get("header", {}))
    return context


class LiveQueue:
    """A table of the queue in `box`, and the thread that keeps it up to date.

    `read` is set once the first `table` is there; `table` is the latest, or None before that.
    """

    def __init__(self, read: Callable[[], pd.DataFrame]) -> None:
        self.table: pd.DataFrame | None = None
        self.read = threading.Event()
        self._read, self._ended, self._wake = read, False, threading.Event()
        self._rows: dict[str, Row] = {}
        self._news: deque[str] = deque(maxlen=5)
        self._trouble, self._pause_s, self._drawing = "", FIRST_S, threading.RLock()
        self._looked = ""
        self._head, self._list, self._footer = head(), VBox(), HTML()
        self._said = HTML(_status("Reading the queue …"))
        self.box = VBox([HTML(STYLE), self._head, self._list, self._footer, self._said])
        self.box.add_class("course-queue")
        self.box.observe(self._closed, names="comm")

    def start(self, context: Context) -> None:
        """Begin to follow the queue, in a thread with this context."""
        run = {"target": context.run, "args": (self._follow,)}
        threading.Thread(name="queue", daemon=True, **run).start()

    def stop(self, why: str = "") -> None:
        """Stop following the queue, and say why."""
        with self._drawing:
            self._ended = True
            self._wake.set()
            if why:
                for row in self._rows.values():
                    row.cancel.disabled = True
                self._footer.value, self._said.value = "", _status(escape(self._looked + why))

    def refresh(self) -> float:
        """Read the queue once and show it: seconds until that is worth doing again, 0 for never.

        What goes wrong meanwhile is said in the table.
        """
        try:
            found = self._read()
            trouble = f"{SILENT}; it will be asked again." if SILENT in set(found["reason"]) else ""
        except Exception as error:  # whatever it is, the table says so, and tries again
            found, trouble = self.table, f"The queue could not be read just now: {error}"
        with self._drawing:
            if self._ended:
                return 0
            before = self._look()
            self._show_rows(found)
            self.table, self._trouble = found, trouble
            self._pause_s = (
                FIRST_S if before != self._look() else min(self._pause_s * SLOWER, SLOWEST_S)
            )
            empty = found is not None and found.empty and not trouble
            self._show_words(empty)
        self.read.set()
        return 0 if empty else self._pause_s

    def _follow(self) -> None:
        while not self._ended and (pause_s := self.refresh()):
            if self._wake.wait(pause_s):
                self._wake.clear()
                self._pause_s = FIRST_S
        self._ended = True

    def _closed(self, change: dict[str, Any]) -> None:
        if change["new"] is None:
            self.stop()

    def _look(self) -> list[str]:
        """What can change, but for the time that goes by."""
        rows = [] if self.table is None else self.table.drop(columns="elapsed_s").values.tolist()
        logs = [row.log.value for row in self._rows.values()]
        return [self._trouble, str(rows), *logs, *self._news]

    def _show_rows(self, table: pd.DataFrame | None) -> None:
        shown = [] if table is None else as_text(table.head(MOST_ROWS)).to_dict("records")
        before = self._rows
        self._rows = {
            cells["name"]: before.get(cells["name"]) or Row(cells["name"], self._cancel)
            for cells in shown
        }
        for row, cells in zip(self._rows.values(), shown):
            row.show(cells)
        if before.keys() != self._rows.keys():
            self._list.children = [row.box for row in self._rows.values()]
        self._head.layout.display = "" if shown else "none"
        for name in before.keys() - self._rows.keys():
            before[name].close()
            if table is not None and name not in set(table["name"]):
                self._news.append(before[name].ending())

    def _show_words(self, empty: bool) -> None:
        self._looked, footer = f"As it was at {datetime.now():%H:%M:%S}. ", ""
        if self.table is not None and not empty:
            states = self.table["state"].value_counts().items()
            counts = ", ".join(f"{count} {state}" for state, count in states)
            more = len(self.table) - MOST_ROWS
            hidden = f" {more} of them are not shown: see queue().table()." if more > 0 else ""
            footer = (
                f"<small>{escape(counts)}.{hidden} Looked at {datetime.now():%H:%M:%S}, and again "
                f"in {self._pause_s:.0f} s.</small>"
            )
        self._footer.value = footer
        last = f"{EMPTY} Run the cell again after the next launch." if empty else self._trouble
        said = _status("<br>".join(escape(text) for text in (*self._news, last) if text))
        if said != self._said.value:  # or a screen reader would say it again
            self._said.value = said

    def _cancel(self, row: Row) -> None:
        threading.Thread(target=self._cancel_now, args=(row,), daemon=True).start()

    def _cancel_now(self, row: Row) -> None:
        try:
            launch.cancel(row.run)
        except Exception as error:  # said in the table, as above
            row.ask_again()
            with self._drawing:
                self._news.append(f"{row.run.name} could not be cancelled: {error}")
        self._wake.set()


def _status(content: str) -> str:
    # A screen reader announces what appears in it.
    return f'<div role="status" aria-live="polite">{content}</div>'


def _in_kernel() -> bool:
    """Is this a notebook's kernel? Only there can a live table be shown."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
