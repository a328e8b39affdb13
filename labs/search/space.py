"""The space of a search: choices or a range for each field of a Config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from course import Config
from course.lab import from_dict

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# A list has choices; a tuple is a range: (least, most), or (least, most, "log") to draw factors.
Space = Mapping[str, Sequence[Any]]
EXAMPLE = '{"lr": (0.03, 3.0, "log"), "momentum": (0.8, 0.98), "optimizer": ["sgd", "muon"]}'


def distributions(space: Space, config: Config) -> dict[str, BaseDistribution]:
    """Return a space in Optuna's form.

    Raises:
        ValueError: an empty space, an unknown field or value, or a wrong range.
    """
    from optuna.distributions import CategoricalDistribution

    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"space={space!r}: name the fields to search, as in {EXAMPLE}")
    result: dict[str, BaseDistribution] = {}
    for name, values in space.items():
        if name == "rung":
            raise ValueError("rung is a label, which the search sets. Search other fields")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{name}={values!r}: a list of choices, or a range, as in {EXAMPLE}")
        is_range = isinstance(values, tuple)
        result[name] = _range(name, values, config) if is_range else CategoricalDistribution(values)
        for value in values[:2] if is_range else values:
            from_dict(asdict(config) | {name: value})  # a wrong value is an error here
    return result


def _range(name: str, values: tuple[Any, ...], config: Config) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    bounds, scale = values[:2], values[2:]
    are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in bounds)
    if len(bounds) < 2 or not are_numbers or scale not in ((), ("log",)):
        raise ValueError(f'{name}={values!r}: a range is (least, most) or (least, most, "log")')
    low, high = bounds
    if not low < high or (scale and low <= 0):
        condition = "above 0, and " if scale else ""
        raise ValueError(f"{name}={values!r}: the least must be {condition}below the most")
    is_integer = isinstance(getattr(config, name, None), int)
    return (IntDistribution if is_integer else FloatDistribution)(low, high, log=bool(scale))


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Yield all points of a grid; the last field changes first.

    Raises:
        ValueError: a field has a range.
    """
    if ranges := [name for name, values in space.items() if isinstance(values, tuple)]:
        raise ValueError(f"a grid tries values, and {ranges[0]} has a range. Give a list of values")
    yield from (dict(zip(space, values)) for values in product(*space.values()))


def contains(space: Space, values: Mapping[str, Any]) -> bool:
    """Return whether these values are in the space."""
    return all(
        known[0] <= values[name] <= known[1] if isinstance(known, tuple) else values[name] in known
        for name, known in space.items()
    )
