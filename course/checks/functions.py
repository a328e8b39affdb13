"""Check a function that was written in a notebook, like a TODO but without a run."""

from __future__ import annotations

import ast
import dis
import inspect
import signal
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from course.checks import discovery
from course.checks.lab import FunctionCheck
from course.checks.shared_progress import save_check
from course.checks.store import UNTIMED
from course.checks.verdict import FAILED, PASSED, Checked, Part

Function = Callable[..., Any]
LIMIT_S, AGAIN_S = 60.0, 1.0  # of each part; then how often a function that goes on is interrupted


class TimeLimit(BaseException):
    """A function took longer than LIMIT_S: no Exception, which it might catch."""


@dataclass(frozen=True, repr=False)
class CheckedFunction(Checked):
    """A check's parts, and the function that the lab continues with: yours if right, else ours."""

    function: Function

    def __repr__(self) -> str:
        whose = "yours" if self.passed else "ours, until yours is right"
        return f"{super().__repr__()}\n  The lab goes on with {whose}."

    def _repr_html_(self) -> str:
        whose = "yours" if self.passed else "ours, until yours is right"
        return f"{super()._repr_html_()}<p>The lab goes on with {whose}.</p>"


def check_written(name: str, function: Function) -> CheckedFunction:
    """Check a function that you wrote in a notebook's cell.

    Args:
        name: a name that `progress()` lists, such as "rounding.carry".

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    known = discovery.functions()
    if name not in known:
        raise ValueError(f"nothing written has the name {name!r}: there are {', '.join(known)}")
    wanted = known[name]
    looks = wanted.load()
    parts = _parts(looks, function)
    save_check(name, {part.part: part.verdict for part in parts}, parts)
    passed = all(part.verdict in (PASSED, UNTIMED) for part in parts)
    return CheckedFunction(name, wanted.title, parts, function if passed else looks.solution)


def _parts(looks: FunctionCheck, function: Function) -> tuple[Part, ...]:
    untimed = Part("effect", UNTIMED, "it is not timed here")
    if blank := _blank(function):
        unwritten = Part("mechanism", UNTIMED, "there is nothing to check yet")
        problem = "a blank is left: write what belongs in place of `...`"
        return Part("correct", FAILED, problem, blank), unwritten, untimed
    correct = _looked("correct", looks.correct, function)
    if correct.verdict == FAILED:
        unseen = Part("mechanism", UNTIMED, "it is checked once the results are right")
        return correct, unseen, untimed
    return correct, _looked("mechanism", looks.mechanism, function), untimed


def _looked(part: str, look: Callable[[Function], str], function: Function) -> Part:
    try:
        with _time_limit():
            return Part(part, PASSED, look(function))
    except AssertionError as error:
        return Part(part, FAILED, str(error))
    except TimeLimit as error:
        problem = f"it had not ended after {LIMIT_S:g} s: an endless loop?"
        return Part(part, FAILED, problem, _line_of(error, function))
    except (Exception, SystemExit) as error:  # a learner's function may raise anything
        cause = error
        while cause.__cause__ is not None:  # the kernels' interpreter wraps exceptions
            cause = cause.__cause__
        problem = f"it raised {type(cause).__name__}: {cause}"
        return Part(part, FAILED, problem.splitlines()[0], _line_of(error, function))


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise TimeLimit after LIMIT_S, again and again, as a bare `except:` may catch it.

    Only the main thread can be interrupted; in a different one there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeLimit

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, LIMIT_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _plain(function: Function) -> Function:
    """Return the Python function inside a Triton kernel, or the function itself."""
    return getattr(function, "fn", function)


def globals_of(function: Function) -> dict[str, Any]:
    """Return the global names that a function and the functions inside it use, with their values.

    A function that is not written in Python has none.
    """
    plain = _plain(function)
    names, known = [], getattr(plain, "__globals__", {})
    codes = [getattr(plain, "__code__", None)]
    while codes:
        if isinstance(code := codes.pop(), CodeType):
            names += [op.argval for op in dis.get_instructions(code) if op.opname == "LOAD_GLOBAL"]
            codes += code.co_consts
    return {name: known[name] for name in names if name in known}


def with_helpers(function: Function, callers: tuple[Function, ...] = ()) -> list[Function]:
    """Return a function, and before it those of the same module or notebook that it uses."""
    plain, helpers = _plain(function), {}
    for value in globals_of(plain).values():
        is_local = isinstance(value, FunctionType) and value.__module__ == plain.__module__
        if is_local and value not in (plain, *callers):
            helpers |= dict.fromkeys(with_helpers(value, (plain, *callers)))
    return [*helpers, plain]


def _blank(function: Function) -> str:
    """Return the first line of a function or its helpers that still has `...`; "" if none has."""
    for member in with_helpers(function):
        try:
            lines, _ = inspect.getsourcelines(member)
        except (OSError, TypeError):  # typed in a console that keeps no source
            continue
        nodes = [*ast.walk(ast.parse(textwrap.dedent("".join(lines))))]
        # In `x[..., 0]` it is code.
        indices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
        code = {part for index in indices for part in ast.walk(index)}
        for node in nodes:
            if isinstance(node, ast.Constant) and node.value is ... and node not in code:
                name = f"{member.__name__}, " if member is not _plain(function) else ""
                return f"{name}line {node.lineno}: {lines[node.lineno - 1].strip()}"
    return ""


def _line_of(error: BaseException, function: Function) -> str:
    """Return the line of the function that raised the error; "" if none did."""
    plain = _plain(function)
    if not hasattr(plain, "__code__"):  # not written in Python
        return ""
    file, first = plain.__code__.co_filename, plain.__code__.co_firstlineno
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename == file:
                return f"line {frame.lineno - first + 1}: {frame.line}"
        error = error.__cause__
    return ""
