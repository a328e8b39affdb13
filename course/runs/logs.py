"""Logs: what a run printed, for finding errors. They are never a source of numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from course.runs.files import PART_BYTES
from course.runs.run import all_runs


def _contains(path: Path, text: str) -> bool:
    """Return whether a file contains a text, without reading all of it into memory."""
    wanted, end = text.encode(), b""
    with path.open("rb") as file:
        while wanted and (part := file.read(PART_BYTES)):
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
