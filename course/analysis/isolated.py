"""Call a function in a separate process, so that its crash does not end a notebook's kernel."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Crash(RuntimeError):
    """The process was ended by a signal, such as SIGSEGV, or gave no result."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `function(*arguments)` from a new Python process.

    The function must be defined in a module; arguments and results are pickled.

    Raises:
        Crash: the process crashed before the function returned.
        RuntimeError: the function raised an error; the message is the error's.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder, "request"), Path(folder, "result")
        request.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-P", "-m", __spec__.name, str(request), str(result)]
        process = subprocess.run(command, capture_output=True, text=True)
        if result.exists():  # the process may have crashed afterwards
            has_returned, value = pickle.loads(result.read_bytes())
            if has_returned:
                return value
            raise RuntimeError(value)
    message = next(reversed(process.stderr.strip().splitlines()), "it printed no error")
    code = process.returncode
    cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise Crash(f"The process of {function.__name__} crashed ({cause}): {message}")


if __name__ == "__main__":
    request, result = map(Path, sys.argv[1:])
    try:
        function, arguments = pickle.loads(request.read_bytes())
        content = pickle.dumps((True, function(*arguments)))
    except Exception as error:
        content = pickle.dumps((False, str(error) or repr(error)))
    result.write_bytes(content)
