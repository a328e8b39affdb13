"""What every notebook needs: launch a training job, read its record, show what a rung changed.

Labs import from here and from seven other doors: `course.lab`, `course.runs`, `course.charts`,
`course.analysis`, `course.data`, `course.training` and `course.jobs`. Importing them costs
milliseconds: names are resolved on first use, and nothing imports torch until then.
"""

import os
import sys
from importlib import import_module

import lazy_loader

__version__ = "0.1.0"
# In every process of the course: what one could write, a classmate could run in the user's name.
os.umask(os.umask(0o077) | 0o022)

_NAMES = {
    "config": "Config LADDER rung vary",
    "jobs.launch": "launch launch_all resume wait cancel",
    "jobs.plan": "batch_script device_for without_loading",
    "widgets.queue": "queue",
    "widgets.quiz": "quiz",
    "runs.run": "Run",
    "runs.logs": "search_log",
    "runs.recordings": "recorded recorded_runs trace_path",
    "checks.report": "report compare",
    "checks.ladder": "ladder",
    "checks.verdict": "check launch_check",
    "checks.functions": "check_written",
    "checks.progress": "progress",
    "checks.predictions": "predict recall",
    "checks.todo": "show_todo",
    "checks.script_variants": "script_variant",
    "text": "wrap_text",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)


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
