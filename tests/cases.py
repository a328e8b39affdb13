"""Run many short cases in one test, which costs less than a separate test for each case.

pytest and its processes need about 3 ms to collect, run and report a test.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

LETTERS = 60  # of a case's name in a message
LINES = 8  # of a case's error in a message
FAILURES = (Exception, pytest.fail.Exception)  # pytest.fail's is not an Exception


def for_all(
    names: str | Sequence[str],
    cases: Iterable[Any],
    ids: Callable[[Any], Any] | Sequence[str] | None = None,
) -> Callable[[Any], Any]:
    """Replace pytest.mark.parametrize if no case changes a fixture: one test runs all cases.

    It runs all cases before it fails, and reports each error. On a class, this applies to each of
    its tests.

    Args:
        names: of the arguments that a case sets; as one text, separated by commas.
        ids: names of the cases in a message: a function of each value, or a list of words.
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
    """Return an error that lists each failed case with the test's line."""
    said = [f"{len(failed)} of {count} cases fail; of the first all is above:"]
    for name, error in failed:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == inspect.getfile(test)]
        words = f"{type(error).__name__}: {error}".splitlines()[:LINES]
        said.append(f"  {name} (line {lines[-1] if lines else '?'}): " + "\n    ".join(words))
    return AssertionError("\n".join(said))
