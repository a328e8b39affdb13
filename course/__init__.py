"""Helpers of the course: launch a training job, read its record, see what a rung brought.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

import sys
from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Config": "config", "LADDER": "config", "rung": "config", "vary": "config",
    "launch": "jobs.launch", "launch_all": "jobs.launch", "wait": "jobs.launch",
    "cancel": "jobs.launch", "explain": "jobs.launch",
    "batch_script": "jobs.plan", "device_for": "jobs.plan",
    "queue": "widgets.queue", "quiz": "widgets.quiz",
    "Run": "runs.run", "find": "runs.run", "runs_root": "runs.run", "PROJECT": "runs.run",
    "search_log": "runs.logs", "tail": "runs.logs",
    "recorded": "runs.recordings", "recorded_runs": "runs.recordings",
    "trace_path": "runs.recordings",
    "report": "labs.report", "compare": "labs.report", "ladder": "labs.ladder",
    "check": "labs.checks", "begin": "labs.checks", "progress": "labs.progress",
    "predict": "labs.predictions", "recall": "labs.predictions",
    "show_todo": "labs.todo", "variant": "labs.exercises",
    "autocast": "training.precision", "channels_last": "training.precision",
    "has_units": "training.precision", "comm_report": "topics.communication.report",
    "wrapped": "text",
    "TRAINED": "days.day2", "FULL": "days.day2", "LOADED": "days.day2",
    "STORED": "days.day3", "SPED": "days.day3", "GROWING": "days.day3",
    "trained": "days.day3", "searched": "days.day3", "traded": "days.day4",
    "tuned": "days.tuned",
    "BUSY": "days.lab", "SPREAD": "days.sharded.checks", "spread": "days.sharded.runs",
    "staged": "days.parallel.piped",
}  # fmt: skip
_MODULES = {
    "models": "training.models",
    "plots": "plots",
    "doctor": "workshop.doctor",
    "default_set": "data.default_set",
}
__all__ = sorted(_HOME | _MODULES)


def __getattr__(name: str):
    if name in _MODULES:
        return import_module(f"course.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'course' has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"course.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def _lay_out_tables() -> None:
    """Have a notebook show all its tables alike; elsewhere nothing is to be done."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shown = shell.display_formatter.formatters["text/html"]

        def as_html(frame):
            return import_module("course.plots.tables").as_html(frame)

        for module in ("pandas", "pandas.core.frame"):  # of pandas 3, and before
            shown.for_type_by_name(module, "DataFrame", as_html)


_lay_out_tables()
