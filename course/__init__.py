"""Helpers of the course: launch a training job, read its record, see what a rung brought.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Config": "config", "LADDER": "config", "rung": "config", "vary": "config",
    "launch": "jobs.launch", "launch_all": "jobs.launch", "wait": "jobs.launch",
    "cancel": "jobs.launch", "queue": "widgets.queue", "batch_script": "jobs.plan",
    "Run": "runs.run", "find": "runs.run", "recorded": "runs.recordings",
    "search_log": "runs.logs",
    "report": "labs.report", "compare": "labs.report", "ladder": "labs.report",
    "comm_report": "topics.parallel.communication",
    "check": "labs.checks", "predict": "labs.progress", "recall": "labs.progress",
    "show_todo": "labs.exercises",
}  # fmt: skip
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'course' has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"course.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
