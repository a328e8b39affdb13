"""Measurements that cannot end a training run: after an error, what they measure is unknown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

problems: list[str] = []  # the messages of this process's run, each once


def attempt(what: str, measure: Callable[..., Any], *args: Any, default: Any = None) -> Any:
    """Return the result of `measure(*args)`, or `default` if it raises an error.

    The error is printed as the reason why `what` is unknown. A driver may stop answering, a disk
    may be full, and a system may lack a file in /proc: training continues.
    """
    try:
        return measure(*args)
    except Exception as error:
        message = f"{what} unknown: {type(error).__name__}: {error}. Training continues"
        if message not in problems:
            problems.append(message)
            print(message, file=sys.stderr, flush=True)
        return default


def attempted(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function without a result, so that its errors are printed, as by `attempt`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def guarded(*args: Any) -> None:
            attempt(what, function, *args)

        return guarded

    return decorate
