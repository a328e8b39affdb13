"""Call a function that a learner wrote, and compare its results with the expected ones."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

COLLECTIONS = (list, dict, set)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, which may not change its arguments.

    It gets copies of collections and tensors, so that a check can use its own again.
    """
    is_mutable = [isinstance(v, COLLECTIONS) or hasattr(v, "clone") for v in arguments]
    copies = [copy.deepcopy(v) if mutable else v for v, mutable in zip(arguments, is_mutable)]
    result = function(*copies)
    for name, old, new, mutable in zip(
        inspect.signature(function).parameters, arguments, copies, is_mutable
    ):
        is_same = not mutable or old is new or _equal(old, new)
        assert is_same, (
            f"it changes its argument `{name}`, which the notebook still needs: create a new "
            f"{type(old).__name__ if isinstance(old, COLLECTIONS) else 'tensor'}"
        )
    return result


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, COLLECTIONS):
        return old == new
    return old.shape == new.shape and bool((old == new).all())


def numbers(result: Any, names: str) -> list[float]:
    """Return the numbers of a result such as `hours, kwh`, whatever their types.

    Raises:
        AssertionError: it has others than these; the message shows it.
    """
    count = names.count(",") + 1
    try:
        values = [float(value) for value in ([result] if count == 1 else result)]
    except (TypeError, ValueError):
        values = []
    expected = f"{count} numbers, `{names}`" if count > 1 else "a number"
    assert len(values) == count, f"it returns {result!r:.100}: expected {expected}"
    return values


def compare(
    case: str,
    value: float,
    expected: float,
    mistakes: Mapping[float, str] | None = None,
    *,
    rule: str = "",
    tolerance: float = 1e-4,
) -> None:
    """Assert that a number is the expected one.

    Args:
        case: what was computed, of which arguments.
        mistakes: likely causes, by the number that each of them leads to.
        rule: what to say if none of them does.
        tolerance: relative.
    """

    def is_near(other: float) -> bool:
        return abs(value - other) <= tolerance * abs(other)

    if not is_near(expected):
        cause = next((words for wrong, words in (mistakes or {}).items() if is_near(wrong)), rule)
        raise AssertionError(
            f"{case}: {value:.6g}, expected {expected:.6g}{': ' * bool(cause)}{cause}"
        )
