"""The race: train to a given accuracy in the least time, and with the least joules."""

import lazy_loader

_NAMES = {
    "entries": "Entry",
    "notebook": "difference plot_accuracy settings table",
    "page": "board_page published_results",
    "submission": "draft enter",
    "tracks": "tracks_table",
    "verification": "verify",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
