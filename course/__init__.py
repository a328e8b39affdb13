"""Helpers of the course: launch a training job, read its record, show what a rung changed.

Importing this package costs milliseconds: names are resolved on first use, and nothing
here imports torch until a job (or a notebook cell) needs it.
"""

import sys
from importlib import import_module

from course.lazy import lazy_exports

__version__ = "0.1.0"

_NAMES = {
    ".config": "Config LADDER rung vary",
    ".jobs.launch": "launch launch_all wait cancel explain",
    ".jobs.plan": "batch_script device_for without_loading",
    ".widgets.queue": "queue",
    ".widgets.quiz": "quiz",
    ".runs.run": "Run find_runs runs_root PROJECT",
    ".runs.logs": "search_log tail",
    ".runs.recordings": "recorded recorded_runs trace_path",
    ".checks.report": "report compare",
    ".checks.ladder": "ladder",
    ".checks.verdict": "check launch_check",
    ".checks.functions": "check_written",
    ".checks.progress": "progress",
    ".checks.predictions": "predict recall",
    ".checks.todo": "show_todo",
    ".checks.exercises": "script_variant",
    ".training.memory_prediction": "predict_memory",
    ".training.precision": "autocast channels_last half_format has_units",
    ".analysis.communication": "comm_report",
    ".text": "wrap_text",
}
_MODULES = {
    "models": ".training.models",
    "plots": ".charts",
    "default_set": ".data.default_set",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES, _MODULES)


def _prepare_notebook() -> None:
    """Format all tables in a notebook alike, and protect what its next cells compile."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["text/html"]

    def as_html(frame):
        return import_module("course.charts.tables").as_html(frame)

    def protect(_):  # not now: importing creates no folders
        shell.events.unregister("pre_run_cell", protect)
        import_module("course.runs.user_folder").protect_compile_cache()

    for module in ("pandas", "pandas.core.frame"):  # pandas 3, and earlier versions
        formatter.for_type_by_name(module, "DataFrame", as_html)
    shell.events.register("pre_run_cell", protect)


_prepare_notebook()
