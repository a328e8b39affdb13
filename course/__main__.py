"""Entry of the `course` command."""

import os
import sys
from importlib import import_module

import typer

from course.cli import labs, runs  # noqa: F401 - they add their commands
from course.cli.options import app
from course.runs.files import PROJECT

for _path in sorted(PROJECT.glob("*/course_commands.py")):  # of packages next to this one
    import_module(f"{_path.parent.name}.{_path.stem}")


def main() -> None:
    """Run the command; an expected error is a message, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a file's name may be no text
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # its name may lead elsewhere later
    if (status := os.fstat(here)).st_mode & 0o022 or status.st_uid not in (0, os.getuid()):
        os.chdir("/")  # when imported here, it would read any classmate's matplotlibrc, or hang
        import_module("matplotlib")
        os.fchdir(here)
    os.close(here)
    try:
        app()
    except Exception as error:
        from course.data.folders import DataError
        from course.jobs.launch import JobError
        from slurm_box import ClusterError

        known = ValueError | OSError | DataError | JobError | ClusterError
        expected = isinstance(error, known)
        if not expected or os.environ.get("COURSE_DEBUG"):
            raise
        typer.echo(f"error: {str(error) or type(error).__name__}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
