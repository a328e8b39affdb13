"""Helpers of the course: launch a training job, read its record, see what a rung brought.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

import sys
from importlib import import_module

from course.jobs.private import protect_compile_cache

__version__ = "0.1.0"

_FACES = {
    "config": "Config LADDER rung vary",
    "jobs.launch": "launch launch_all wait cancel explain",
    "jobs.plan": "batch_script device_for",
    "widgets.queue": "queue",
    "widgets.quiz": "quiz",
    "runs.run": "Run find runs_root PROJECT",
    "runs.logs": "search_log tail",
    "runs.trackers.export": "export",
    "runs.recordings": "recorded recorded_runs trace_path",
    "labs.report": "report compare",
    "labs.ladder": "ladder",
    "labs.checks": "check begin",
    "labs.written": "check_written",
    "labs.progress": "progress",
    "labs.predictions": "predict recall",
    "labs.todo": "show_todo",
    "labs.exercises": "variant",
    "training.precision": "autocast channels_last half_format has_units",
    "topics.communication.report": "comm_report",
    "text": "wrapped",
    "days.day2": "TRAINED FULL LOADED",
    "days.day3": "STORED SPED GROWING",
    "days.learning": "trained searched",
    "days.day4": "traded",
    "days.lab": "BUSY",
    "days.sharded.ranks": "SPREAD",
    "days.sharded.runs": "spread",
    "days.parallel.piped": "staged",
    "days.tuned": "tuned",
}
_HOME = {name: module for module, names in _FACES.items() for name in names.split()}
_MODULES = {
    "models": "training.models",
    "plots": "charts",
    "doctor": "workshop.doctor",
    "default_set": "data.default_set",
    "race": "race",
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
            return import_module("course.charts.tables").as_html(frame)

        for module in ("pandas", "pandas.core.frame"):  # of pandas 3, and before
            shown.for_type_by_name(module, "DataFrame", as_html)


protect_compile_cache()
_lay_out_tables()
