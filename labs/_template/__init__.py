"""A lab's helpers: its notebook imports them by `from labs import NAME as lab`."""

import lazy_loader

# For each module the names that the notebook uses; they are imported on first use.
_NAMES = {
    "figures": "plot_doubles",
    "helpers": "double",
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, None, {module: names.split() for module, names in _NAMES.items()}
)
