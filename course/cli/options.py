"""The command's app, and the options that several commands share."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import course

if TYPE_CHECKING:
    from course.runs.run import Run

# Commands import what they need when they run, so that help does not wait for torch.
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"make-training-fast {course.__version__}")
        raise typer.Exit


@app.callback()
def check_installation(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Make deep-learning training fast, one measured step at a time."""
    from course.runs.run import PROJECT

    if not (PROJECT / "solutions").is_dir() and "--help" not in sys.argv:
        raise ValueError(
            f"the course in {PROJECT} has no notebooks, exercises and recordings, because it was "
            f"installed from a wheel: clone the repository, run `make setup` in the clone, and use "
            f".venv/bin/course there"
        )


def _trust(folders: list[Path] | None) -> list[Path] | None:
    """Add folders to COURSE_TRUST, which launches read."""
    from course.runs.trust import VARIABLE

    if folders:
        known = os.environ.get(VARIABLE, "").split(os.pathsep)
        os.environ[VARIABLE] = os.pathsep.join([*filter(None, known), *map(str, folders)])
    return folders


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick/--full", envvar="COURSE_QUICK", help="Small images, small batch, few steps."
    ),
]
Rerun = Annotated[bool, typer.Option("--rerun", help="Measure again, even if this run exists.")]
Script = Annotated[str, typer.Option("--script", help="The training script.")]
SiteName = Annotated[
    str, typer.Option("--site", envvar="COURSE_SITE", help="Where to run: a name in sites.toml.")
]
RunName = Annotated[str, typer.Argument(help="The name of a run, or a unique part of it.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Set a config field: key=value. Repeatable.")
]

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
TrustFolder = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust-folder",
        exists=True,
        callback=_trust,
        help="Launch although others can change this folder or file. Repeatable.",
    ),
]


def confirm(question: str, *, yes: bool, default: bool | None = False) -> None:
    """Ask whether to go on, unless `yes` says so already.

    Raises:
        ValueError: there is no terminal to ask in.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{question} There is no terminal to answer in: if so, add --yes")
    typer.confirm(question, default=default, abort=True, err=True)


def progress_to_stderr(as_json: bool) -> AbstractContextManager:
    """Redirect progress to standard error if standard output is for JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def wait_for(runs: Sequence[Run]) -> None:
    """Follow runs until they end. Without a terminal, progress lines would repeat: hide them."""
    from course.jobs.launch import wait

    with nullcontext() if sys.stdout.isatty() else redirect_stdout(io.StringIO()):
        wait(runs, check=False)
