"""Many cases in one test, where each takes a moment: as tests of their own they would cost more.

To collect, run and report a test takes pytest and its processes some 3 ms.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

LETTERS = 60  # of a case in a message
LINES = 8  # of what became of it
FAILURES = (Exception, pytest.fail.Exception)  # which is none


def for_all(
    names: str | Sequence[str],
    cases: Iterable[Any],
    ids: Callable[[Any], Any] | Sequence[str] | None = None,
) -> Callable[[Any], Any]:
    """Used as pytest.mark.parametrize, where no case changes a fixture: one test looks at all.

    It fails once all were looked at, and says what became of each that failed. On a class it is
    so of each of its tests.

    Args:
        names: of the arguments that a case gives; in one text, with commas between.
        ids: what a case is called in a message: from each value, or a list of words.
    """
    names = names.split(",") if isinstance(names, str) else names
    wanted, cases = [name.strip() for name in names], [*cases]
    if not cases:
        raise ValueError(f"no case of {wanted}: nothing would be looked at")
    values = [case if len(wanted) > 1 else (case,) for case in cases]
    called = [_called(case, ids) for case in values] if callable(ids) or ids is None else [*ids]

    def decorate(test: Any) -> Any:
        if isinstance(test, type):
            for name in [name for name in vars(test) if name.startswith("test")]:
                setattr(test, name, decorate(vars(test)[name]))
            return test

        @functools.wraps(test)
        def look_at_all(*own: Any, **fixtures: Any) -> None:
            __tracebackhide__ = True
            failed: list[tuple[str, BaseException]] = []
            for name, case in zip(called, values, strict=True):
                try:
                    test(*own, **fixtures, **dict(zip(wanted, case, strict=True)))
                except FAILURES as error:
                    failed.append((name, error))
            if failed:
                raise _told(test, failed, len(cases)) from failed[0][1]

        given = inspect.signature(test)
        kept = [argument for name, argument in given.parameters.items() if name not in wanted]
        look_at_all.__signature__ = given.replace(parameters=kept)
        return look_at_all

    return decorate


def _called(case: Sequence[Any], ids: Callable[[Any], Any] | None) -> str:
    words = [(ids(value) if ids else None) or _plain(value) for value in case]
    return " ".join(map(str, words))[:LETTERS]


def _plain(value: Any) -> Any:
    return value.stem if isinstance(value, Path) else value


def _told(test: Any, failed: list[tuple[str, BaseException]], count: int) -> AssertionError:
    """What became of each case that failed, with the test's line."""
    said = [f"{len(failed)} of {count} cases fail; of the first all is above:"]
    for name, error in failed:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == inspect.getfile(test)]
        words = f"{type(error).__name__}: {error}".splitlines()[:LINES]
        said.append(f"  {name} (line {lines[-1] if lines else '?'}): " + "\n    ".join(words))
    return AssertionError("\n".join(said))
