"""What each task of a job executes: submitit's own program, but for NumPy.

submitit imports NumPy before it loads the function to call, which takes a third of a task's start.
The course's functions need none, but for a few that import it themselves.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def main() -> None:
    """`python -uP -m course.jobs.warm.task FOLDER`: call what was submitted there."""
    is_there = "numpy" in sys.modules  # as where a start-up file of the user's imports it
    sys.modules.setdefault("numpy", None)  # submitit goes on where there is none
    try:
        from submitit.core.submission import submitit_main
    finally:
        if not is_there:
            del sys.modules["numpy"]  # for those who import it from here on
    submitit_main()


def command(python: str, logs: Path) -> str:
    """The command of a job's tasks, for a shell."""
    return f"{python} -uP -m course.jobs.warm.task {shlex.quote(str(logs))}"


class Starts:
    """An executor of submitit's, whose tasks start so."""

    @property
    def _submitit_command_str(self) -> str:
        return command(self.python, self.folder)


if __name__ == "__main__":
    main()
