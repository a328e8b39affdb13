"""Entry of the `course` command."""

import os
import sys

import typer

from course.cli import bench, export, labs, race  # noqa: F401 - they add their commands
from course.cli.runs import app


def main() -> None:
    """Run the command; an expected error is a message, not a traceback."""
    try:
        app()
    except Exception as error:
        from course.data.default_set import DataError
        from course.jobs.cluster.setup import ClusterError
        from course.jobs.launch import JobError
        from course.runs.trackers.export import ExportError

        known = ValueError | ClusterError | DataError | ExportError | JobError
        expected = isinstance(error, known)
        if not expected or os.environ.get("COURSE_DEBUG"):
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
