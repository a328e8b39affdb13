"""Logs: what a run printed, for finding errors. They are never a source of numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from course.runs.run import Run, all_runs
from course.text import printable

SUBMITIT_LINES = 4  # written by submitit at the end of a log, at most
MIN_BYTES, LINE_BYTES = 2**20, 400  # to read: logs can be larger than memory


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a text file, printable; "" if there is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        length = max(MIN_BYTES, LINE_BYTES * (lines + SUBMITIT_LINES))
        file.seek(max(0, path.stat().st_size - length))
        ending = printable(file.read().decode(errors="replace")).rstrip().split("\n")
    # submitit reports that its own function succeeded, even if the run failed.
    return "\n".join([line for line in ending if not line.startswith("submitit ")][-lines:])


def text(run: Run, *, err: bool = False, lines: int = 1000) -> str:
    """Return the end of the standard output of the run's tasks, or of their standard error."""
    suffix = ".err" if err else ".out"
    return "\n".join(tail(path, lines) for path in run.logs if path.suffix == suffix)


def submitted(run: Run) -> str:
    """Return the batch script of a run's job; "" if there is none."""
    scripts = sorted(run.job.folder.glob("logs/*_submission.sh"))
    return scripts[-1].read_text() if scripts else ""


def _contains(path: Path, text: str) -> bool:
    """Return whether a file contains a text, without reading all of it into memory."""
    wanted, end = text.encode(), b""
    with path.open("rb") as file:
        while wanted and (part := file.read(MIN_BYTES)):
            if wanted in (end := end + part):
                return True
            end = end[len(end) - len(wanted) + 1 :]
    return not wanted


def search_log(
    name: str = "*", contains: str = "", with_err: bool = False
) -> list[Path] | dict[str, list[Path]]:
    """Find log files of runs, sorted by path.

    Args:
        name: a shell pattern for the run's name, such as "amp*".
        contains: plain text that the file must contain.
        with_err: also search standard error, and return {"stdout": […], "stderr": […]}.
    """
    logs = [path for run in all_runs() if fnmatchcase(run.name, name) for path in run.logs]
    matches = sorted(path for path in logs if path.is_file() and _contains(path, contains))
    stdout = [path for path in matches if path.suffix == ".out"]
    if not with_err:
        return stdout
    return {"stdout": stdout, "stderr": [path for path in matches if path.suffix == ".err"]}
