"""A row of the queue's live table: what is known of a run, its log on request, and its end."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from ipywidgets import HTML, Button, HBox, Layout, ToggleButton, VBox

from course.runs import logs
from course.runs.run import Run, runs_root

LOG_LINES = 20
LOG_BUTTON, CANCEL_BUTTON = "76px", "84px"
STYLE = """<style>
.course-queue .widget-html-content { line-height: 1.4; white-space: normal; }
.course-queue-row { display: grid; column-gap: 8px; overflow-wrap: anywhere; padding: 4px 0;
  grid-template-columns: 3.6em minmax(5em, 2fr) 3em 4.4em minmax(5.5em, 3fr) 4em 3em 3em 5em;
  border-top: 1px solid #8888; }
.course-queue-head { font-weight: bold; white-space: nowrap; border: none; padding: 0; }
.course-queue-label { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
.course-queue-log { display: flex; flex-direction: column-reverse; max-height: 260px;
  overflow: auto; border-left: 4px solid #0072B2; padding-left: 8px; margin: 0 0 8px; }
.course-queue-log pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.course-queue :focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
</style>"""


class Row:
    """One run: its cells, a button for its log, one to cancel it, and the log where asked for."""

    def __init__(self, name: str, cancel: Callable[[Row], None]) -> None:
        self.run, self._cells, self._asked = Run(runs_root() / name), {}, False
        self.text = HTML(layout=_fills())
        self.opener = ToggleButton(
            description="Log", tooltip=f"Show the log of {name}", layout=_fixed(LOG_BUTTON)
        )
        self.cancel = Button(
            description="Cancel", tooltip=f"Cancel {name}", layout=_fixed(CANCEL_BUTTON)
        )
        self.log = HTML(layout=Layout(width="auto"))
        self.parts = HBox([self.text, self.opener, self.cancel])
        self.box = VBox([self.parts])
        self.opener.observe(self._toggled, names="value")
        self.cancel.on_click(lambda _: self._ask(cancel))

    def show(self, cells: dict[str, str]) -> None:
        """Show what is known of the run now, and its log if that is open."""
        self._cells = cells
        reason = "cancelling was asked for" if self._asked else cells["reason"]
        _set(self.text, _cells({**cells, "reason": reason}))
        if self.opener.value:
            _set(self.log, _log(self.run))

    def ask_again(self) -> None:
        """Let the run be cancelled once more: the first try went wrong."""
        self._asked, self.cancel.disabled, self.cancel.description = False, False, "Cancel"

    def ending(self) -> str:
        """A sentence on how the run ended, once it is not in the queue any more."""
        status = self.run.status
        if status in ("queued", "running"):
            return f"{self.run.name} is gone, and left no record."
        how = "was cancelled" if status == "cancelled" else f"is over: {status}"
        return f"{self.run.name} {how}."

    def close(self) -> None:
        """Take it from the page."""
        for each in (self.box, self.parts, self.text, self.opener, self.cancel, self.log):
            each.close()

    def _ask(self, cancel: Callable[[Row], None]) -> None:
        self._asked, self.cancel.disabled, self.cancel.description = True, True, "Cancelling"
        self.show(self._cells)
        cancel(self)

    def _toggled(self, change: dict[str, Any]) -> None:
        is_open = change["new"]
        self.opener.description = "Hide log" if is_open else "Log"
        self.opener.tooltip = f"{'Hide' if is_open else 'Show'} the log of {self.run.name}"
        _set(self.log, _log(self.run) if is_open else "")
        self.box.children = [self.parts, self.log] if is_open else [self.parts]


def head() -> HBox:
    """The names of the columns."""
    names = ("job", "name", "site", "state", "reason", "elapsed", "nodes", "GPUs", "steps")
    spans = "".join(f"<span>{name}</span>" for name in names)
    text = HTML(
        f'<div class="course-queue-row course-queue-head" aria-hidden="true">{spans}</div>',
        layout=_fills(),
    )
    spaces = [HTML(layout=_fixed(width)) for width in (LOG_BUTTON, CANCEL_BUTTON)]
    return HBox([text, *spaces])


def _fills() -> Layout:
    """As wide as the buttons leave room, whatever stands in it: so the columns are aligned."""
    return Layout(flex="1 1 0", width="auto", min_width="0")


def _fixed(width: str) -> Layout:
    return Layout(flex="none", width=width)


def _cells(cells: dict[str, str]) -> str:
    # Each cell says its column's name to a screen reader: there is no table around the buttons.
    spans = "".join(
        f'<span><span class="course-queue-label">{name}: </span>{escape(text)}</span>'
        for name, text in cells.items()
    )
    return f'<div class="course-queue-row">{spans}</div>'


def _log(run: Run) -> str:
    """The end of what a run printed, for a page."""
    try:
        parts = [
            (kind, logs.text(run, err=err, lines=LOG_LINES).strip())
            for kind, err in (("output", False), ("errors", True))
        ]
    except OSError as error:
        parts = [("log", f"cannot be read just now: {error}")]
    texts = [f"<b>{kind}</b><pre>{escape(text)}</pre>" for kind, text in parts if text]
    where, name = (
        escape(str(run.logs[0].parent if run.logs else run.folder / "logs")),
        escape(run.name),
    )
    body = "No log yet: the run has printed nothing so far."
    if texts:
        body = "".join([*texts, f"<small>The last lines; all of it lies in {where}</small>"])
    return (
        f'<div class="course-queue-log" role="region" tabindex="0" aria-label="log of {name}">'
        f"<div>{body}</div></div>"
    )


def _set(shown: HTML, value: str) -> None:
    if shown.value != value:
        shown.value = value
