"""Lab 2.3: how far it scales."""

from course.lazy import lazy_exports

_NAMES = {
    ".efficiency": "fit predicted published recorded_runs scaling",
    ".figures": "plot_beyond plot_measured plot_messages plot_overlap plot_shares",
    ".node": "beside_prediction",
    ".ring": "Link buckets timeline",
    ".sampling": "shares",
    "course.runs.ranks": "rank_table",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
