"""What a search may try: fields of a Config, each with its choices or its range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from course.config import Config, from_dict

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# A list has choices. A tuple is a range, (least, most), or (least, most, "log") to draw factors.
Space = Mapping[str, Sequence[Any]]
EXAMPLE = '{"lr": (0.03, 3.0, "log"), "momentum": (0.8, 0.98), "optimizer": ["sgd", "muon"]}'


def distributions(space: Space, config: Config) -> dict[str, BaseDistribution]:
    """Optuna's own form of a space, each value of which this config could have.

    Raises:
        ValueError: an empty space, a field or value that no config has, or a wrong range.
    """
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"space={space!r}: name the fields to search, as in {EXAMPLE}")
    found = {}
    for name, values in space.items():
        if name == "rung":
            raise ValueError("rung is a label, which a search gives itself: search other fields")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{name}={values!r}: a list of choices, or a range, as in {EXAMPLE}")
        found[name] = _range(name, values, config) if isinstance(values, tuple) else _any(values)
        for value in values[:2] if isinstance(values, tuple) else values:
            from_dict(asdict(config) | {name: value})
    return found


def _any(values: list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution(values)


def _range(name: str, values: tuple[Any, ...], config: Config) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    ends, how = values[:2], values[2:]
    number = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if len(ends) < 2 or not number or how not in ((), ("log",)):
        raise ValueError(f'{name}={values!r}: a range is (least, most) or (least, most, "log")')
    low, high = ends
    if not low < high or (how and low <= 0):
        least = "above 0, and " if how else ""
        raise ValueError(f"{name}={values!r}: the least must be {least}below the most")
    whole = isinstance(getattr(config, name, None), int)
    return (IntDistribution if whole else FloatDistribution)(low, high, log=bool(how))


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """All that a grid tries, the last field's values first.

    Raises:
        ValueError: a field has a range, of which no grid can try all.
    """
    if ranges := [name for name, values in space.items() if isinstance(values, tuple)]:
        raise ValueError(f"a grid tries values, and {ranges[0]} has a range: give a list of them")
    for values in product(*space.values()):
        yield dict(zip(space, values))


def holds(space: Space, values: Mapping[str, Any]) -> bool:
    """Are these values of the space?"""
    return all(
        (known[0] <= values[name] <= known[1])
        if isinstance(known, tuple)
        else values[name] in known
        for name, known in space.items()
    )
