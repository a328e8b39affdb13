"""Call a function in a process of its own: if it crashes, a notebook's kernel stays alive."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUEST, RESULT = "request.pickle", "result.pickle"


class Crash(RuntimeError):
    """The process ended by a signal, such as SIGSEGV, or without a result."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `function(*arguments)` returns in a new Python process.

    The function must be defined in a module; arguments and results are pickled.

    Raises:
        Crash: the process crashed before the function returned.
        RuntimeError: the function raised an error; the message is the error's.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder) / REQUEST, Path(folder) / RESULT
        request.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-P", "-m", __spec__.name, folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if result.exists():  # whatever happened afterwards, as the process ended
            returned, value = pickle.loads(result.read_bytes())
            if returned:
                return value
            raise RuntimeError(value)
    message = next(reversed(done.stderr.strip().splitlines()), "it printed no error")
    code = done.returncode
    ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise Crash(f"The process of {function.__name__} crashed ({ended}): {message}")


def _main(folder: str) -> None:
    try:
        function, arguments = pickle.loads((Path(folder) / REQUEST).read_bytes())
        result = pickle.dumps((True, function(*arguments)))
    except Exception as error:
        result = pickle.dumps((False, str(error) or repr(error)))
    part = Path(folder) / f"{RESULT}.part"
    part.write_bytes(result)
    part.rename(Path(folder) / RESULT)  # so a result is never read half-written


if __name__ == "__main__":
    _main(sys.argv[1])
