"""Lab 4.3: one network on several devices."""

from course.lazy import lazy_exports

_NAMES = {
    ".balance": "cut_by pieces",
    ".borders": "traps",
    ".comparison": "compared",
    ".configs": "pipeline_config",
    ".mlp_cuts": "cuts",
    ".dtensors": "convolved parallelized",
    ".figures": "plot_cuts plot_mlp plot_run plot_steps",
    ".measurements": "recorded ways",
    ".messages": "sent share",
    ".missing_sum": "forgotten",
    ".schedules": "bubble ideal idle in_flight order simulate",
    ".timelines": "bubbles ideal_of order_of pipelines replay timeline",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
