"""The roofline: the shortest time that a step could take on a machine."""

from course.lazy import lazy_exports

_NAMES = {
    ".bounds": "ceilings points recorded_ceilings",
    ".cost": "fusion_traffic operators step_cost",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
