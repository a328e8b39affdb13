"""Helpers of the course: launch a training job, read its record, see what a rung brought.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Config": "config", "LADDER": "config", "rung": "config", "vary": "config",
    "launch": "jobs", "launch_all": "jobs", "wait": "jobs", "cancel": "jobs",
    "queue": "queues",
    "batch_script": "plans",
    "Run": "runs", "find": "runs",
    "search_log": "logs",
    "report": "reports", "compare": "reports", "ladder": "reports",
    "recorded": "recordings",
    "comm_report": "communication",
    "check": "checks", "predict": "progress", "recall": "progress",
    "show_todo": "gaps",
}  # fmt: skip
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'course' has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"course.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
