"""Logs: what a run printed, for people who look for what went wrong. Never a source of numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from course.runs.run import Run, all_runs
from course.text import printable

SUBMITIT_LINES = 4  # at most, of submitit's own, at the end of a log
# Read at least, and for each line asked for: logs can be larger than memory, a line 100 kB long.
LEAST_BYTES, LINE_BYTES = 2**20, 400


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a text file, printable; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        length = max(LEAST_BYTES, LINE_BYTES * (lines + SUBMITIT_LINES))
        file.seek(max(0, path.stat().st_size - length))
        ending = printable(file.read().decode(errors="replace")).rstrip().split("\n")
    # submitit says that *its* function succeeded, which also holds for a run that failed.
    return "\n".join([line for line in ending if not line.startswith("submitit INFO")][-lines:])


def text(run: Run, *, err: bool = False, lines: int = 1000) -> str:
    """The end of what the run's tasks printed, or of their standard error."""
    suffix = ".err" if err else ".out"
    return "\n".join(tail(path, lines) for path in run.logs if path.suffix == suffix)


def submitted(run: Run) -> str:
    """The batch script that a run's job was submitted as; empty where there is none."""
    scripts = sorted(run.job.folder.glob("logs/*_submission.sh"))
    return scripts[-1].read_text() if scripts else ""


def search_log(
    name: str = "*", contains: str = "", with_err: bool = False
) -> list[Path] | dict[str, list[Path]]:
    """Log files of the runs whose name fits, sorted.

    Args:
        name: a shell pattern for the run's name, as "amp*".
        contains: keep files in which this text occurs, as a plain text and not a pattern.
        with_err: also search standard error, and return {"stdout": […], "stderr": […]}.
    """
    paths = [path for run in all_runs() if fnmatchcase(run.name, name) for path in run.logs]
    found = sorted(path for path in paths if contains in path.read_text(errors="replace"))
    stdout = [path for path in found if path.suffix == ".out"]
    if not with_err:
        return stdout
    return {"stdout": stdout, "stderr": [path for path in found if path.suffix == ".err"]}
