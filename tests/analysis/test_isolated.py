"""A function in a separate process: its result, its error, its crash."""

import atexit
import os
import signal
import sys

import pytest

from course.analysis import isolated


def test_a_result_returns_even_if_the_process_crashes_afterwards() -> None:
    assert isolated.call(divmod, 7, 2) == (3, 1)
    assert isolated.call(atexit.register, os.abort) is os.abort


@pytest.mark.parametrize(
    "function, argument, message",
    [
        (int, "seven", r"^invalid literal for int\(\) with base 10: 'seven'$"),
        (exec, "raise RuntimeError('two\\nlines')", "^two\nlines$"),
        (exec, "raise AssertionError()", r"^AssertionError\(\)$"),
        (eval, "lambda: 1", "pickle"),  # a result that cannot be sent
    ],
)
def test_an_error_keeps_its_complete_message(function, argument: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message) as error:
        isolated.call(function, argument)
    assert type(error.value) is RuntimeError


@pytest.mark.parametrize(
    "function, argument, message",
    [
        (sys.exit, "no result", r"^The process of exit crashed \(exit code 1\): no result$"),
        (signal.raise_signal, signal.SIGSEGV, r"process of raise_signal crashed \(SIGSEGV\)"),
        (os._exit, 3, r"_exit crashed \(exit code 3\)"),
    ],
)
def test_a_crash_ends_only_that_process(function, argument, message: str) -> None:
    with pytest.raises(isolated.Crash, match=message):
        isolated.call(function, argument)
