"""Helpers of the course: launch a training job, read its record, see what a rung brought.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

import sys
from importlib import import_module

from course.jobs.private import protect_compile_cache

__version__ = "0.1.0"

_EXPORTS = {
    "config": "Config LADDER rung vary",
    "jobs.launch": "launch launch_all wait cancel explain",
    "jobs.plan": "batch_script device_for",
    "widgets.queue": "queue",
    "widgets.quiz": "quiz",
    "runs.run": "Run find_runs runs_root PROJECT",
    "runs.logs": "search_log tail",
    "runs.trackers.export": "export",
    "runs.recordings": "recorded recorded_runs trace_path",
    "labs.report": "report compare",
    "labs.ladder": "ladder",
    "labs.checks": "check launch_check",
    "labs.written": "check_written",
    "labs.progress": "progress",
    "labs.predictions": "predict recall",
    "labs.todo": "show_todo",
    "labs.exercises": "script_variant",
    "training.precision": "autocast channels_last half_format has_units",
    "topics.communication.report": "comm_report",
    "text": "wrap_text",
    "days.day2": "DDP_SETTINGS DDP_FULL_SIZE LOADER_SETTINGS",
    "days.day3": "FORMAT_SETTINGS AUGMENTATION_CONFIG PROGRESSIVE_RESIZE",
    "days.learning": "crops_config rate_search_config",
    "days.day4": "memory_config",
    "days.lab": "FULL_SIZE",
    "days.sharded.ranks": "SMALL_VIT_SETTINGS",
    "days.sharded.runs": "sharded_config",
    "days.parallel.piped": "pipeline_config",
    "days.tuned": "search_config",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_MODULES = {
    "models": "training.models",
    "plots": "charts",
    "doctor": "workshop.doctor",
    "default_set": "data.default_set",
    "race": "race",
}
__all__ = sorted(_MODULE_OF | _MODULES)


def __getattr__(name: str):
    if name in _MODULES:
        return import_module(f"course.{_MODULES[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'course' has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"course.{_MODULE_OF[name]}"), name)


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
