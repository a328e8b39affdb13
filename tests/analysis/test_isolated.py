"""Functions in a separate process: their result, their error, their crash."""

import atexit
import os
import signal

import pytest

from course.analysis import isolated


def test_a_result_returns_even_if_the_process_crashes_afterwards() -> None:
    assert isolated.call(divmod, 7, 2) == (3, 1)
    assert isolated.call(atexit.register, os.abort) is os.abort


def test_an_error_keeps_its_complete_message() -> None:
    with pytest.raises(RuntimeError, match="^two\nlines$"):
        isolated.call(exec, "raise RuntimeError('two\\nlines')")
    with pytest.raises(RuntimeError, match="pickle"):
        isolated.call(eval, "lambda: 1")  # a result that cannot be sent


def test_a_crash_ends_only_that_process() -> None:
    with pytest.raises(isolated.Crash, match=r"process of raise_signal crashed \(SIGSEGV\)"):
        isolated.call(signal.raise_signal, signal.SIGSEGV)
