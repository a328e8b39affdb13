"""Data formats, and where images are decoded."""

from course.lazy import lazy_exports

_NAMES = {
    ".disk": "IMAGENET SHARD_IMAGES measure_disk shared_files",
    ".figures": (
        "plot_core_costs plot_disk plot_epoch_orders plot_format_speeds plot_losses "
        "plot_shared_files"
    ),
    ".formats": "core_costs epoch_orders reader_speeds shard_members",
    ".lab": "FORMAT_SETTINGS",
    "course.data.formats.convert": "convert",
    "course.data.formats.shards": "paths",
}
__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
