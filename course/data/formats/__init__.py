"""Ways of storing images: convert a set, and read it."""

import lazy_loader

_NAMES = {
    "convert": "convert",
    "raw": "Raw",
    "shards": "paths shuffled",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
