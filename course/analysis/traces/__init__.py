"""Profilers' traces as tables."""

from course.lazy import lazy_exports

_NAMES = {".tables": "by_kernel by_operator idle read read_run"}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
