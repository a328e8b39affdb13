"""A function in a process of its own: its result, its error, its crash."""

import os
import signal

import pytest

from course.runs import isolated


def test_a_result_comes_back() -> None:
    assert isolated.call(divmod, 7, 2) == (3, 1)


def test_an_error_comes_back_with_its_message() -> None:
    with pytest.raises(RuntimeError, match="invalid literal for int"):
        isolated.call(int, "seven")


def test_a_crash_is_told_and_kills_only_that_process() -> None:
    with pytest.raises(isolated.Crash, match=r"process of raise_signal crashed \(SIGSEGV\)"):
        isolated.call(signal.raise_signal, signal.SIGSEGV)
    with pytest.raises(isolated.Crash, match=r"_exit crashed \(exit code 3\)"):
        isolated.call(os._exit, 3)
