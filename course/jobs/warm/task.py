"""What each task of a job executes: submitit's own program, but for NumPy.

submitit imports NumPy before it loads the function to call, which takes a third of a task's start.
The course's functions need none, but for a few that import it themselves.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def main() -> None:
    """`python -u -m course.jobs.warm.task FOLDER`: call what was submitted there."""
    sys.modules["numpy"] = None  # submitit goes on where there is none
    from submitit.core.submission import submitit_main

    del sys.modules["numpy"]  # for those who import it from here on
    submitit_main()


def command(python: str, logs: Path) -> str:
    """The command of a job's tasks, for a shell."""
    return f"{python} -u -m course.jobs.warm.task {shlex.quote(str(logs))}"


if __name__ == "__main__":
    main()
