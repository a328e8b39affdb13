"""Import a package's names only when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create a package's `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: the package's `__name__`.
        names: for each module (relative to the package if it starts with a dot) the names that
            the package exports from it, separated by spaces.
        modules: modules that the package exports by name.

    Its submodules are available, too.
    """
    module_of = {
        name: module
        for module, names_of_module in names.items()
        for name in names_of_module.split()
    }
    modules = modules or {}
    exported = sorted({*module_of, *modules})

    def get(name: str) -> Any:
        if name in modules:
            value = import_module(modules[name], package)
        elif name in module_of:
            value = getattr(import_module(module_of[name], package), name)
        else:
            try:
                return import_module(f".{name}", package)
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
            raise AttributeError(
                f"module {package!r} has no {name!r}; it offers {', '.join(exported)}"
            )
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: exported, exported
