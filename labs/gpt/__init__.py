"""A GPT: the rungs of a ResNet on a transformer, and those that only a transformer has."""

import lazy_loader

_NAMES = {"measurements": "recorded_ladder"}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
