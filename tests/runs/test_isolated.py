"""A function in a process of its own: its result, its error, its crash."""

import atexit
import os
import signal
import sys

import pytest

from course.runs import isolated


def test_a_result_comes_back() -> None:
    assert isolated.call(divmod, 7, 2) == (3, 1)


def test_an_error_comes_back_with_its_message() -> None:
    with pytest.raises(RuntimeError) as error:
        isolated.call(int, "seven")
    assert str(error.value) == "invalid literal for int() with base 10: 'seven'"


# Functions for the other process are sent as source, because it does not find the tests' modules.
@pytest.mark.parametrize(
    "raised, message",
    [("RuntimeError('two\\nlines')", "two\nlines"), ("AssertionError()", "AssertionError()")],
)
def test_the_full_message_comes_back_whatever_is_printed_after_it(
    raised: str, message: str
) -> None:
    source = f"""import atexit, sys
atexit.register(print, "the last line", file=sys.stderr)
raise {raised}"""
    with pytest.raises(RuntimeError) as error:
        isolated.call(exec, source)
    assert type(error.value) is RuntimeError and str(error.value) == message


def test_a_result_counts_though_the_process_crashes_at_its_exit() -> None:
    assert isolated.call(atexit.register, os.abort) is os.abort


def test_an_exit_without_a_result_is_a_crash() -> None:
    with pytest.raises(isolated.Crash) as error:
        isolated.call(sys.exit, "no result")
    assert str(error.value) == "The process of exit crashed (exit code 1): no result"


def test_a_result_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="pickle"):
        isolated.call(compile, "1", "file", "eval")


def test_a_crash_is_told_and_kills_only_that_process() -> None:
    with pytest.raises(isolated.Crash, match=r"process of raise_signal crashed \(SIGSEGV\)"):
        isolated.call(signal.raise_signal, signal.SIGSEGV)
    with pytest.raises(isolated.Crash, match=r"_exit crashed \(exit code 3\)"):
        isolated.call(os._exit, 3)
