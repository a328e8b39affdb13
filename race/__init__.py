"""The race: train to an accuracy, in the least time."""

from course.lazy import lazy_exports

_NAMES = {
    ".again": "verify",
    ".board": "Entry entries SHIPPED_ENTRIES",
    ".entry": "draft enter",
    ".views": "anchors board_page difference margin settings table tracks_table ways",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
