"""Commands of a class: init, join, leave, end, and the instructor's view; and a raised hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course.cli.options import app

class_app = typer.Typer(no_args_is_help=True, help="A class: its folder, and who is stuck.")
app.add_typer(class_app, name="class")


@class_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="On a disk that learners and jobs can read.")],
    site: Annotated[str, typer.Option(help="Where the class's jobs run.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="The first cells' quick: full for GPUs.")
    ] = True,
    crops: Annotated[bool, typer.Option("--crops", help="Also make the crops: 460 MB.")] = False,
    group: Annotated[str, typer.Option(help="A group with instructors only.")] = "",
    instructors: Annotated[str, typer.Option(help="Further instructors' accounts: a,b.")] = "",
) -> None:
    """Create what a class shares, or hand out a fix: replace the course, and keep the rest."""
    from tools.classroom import setup

    names = [name for name in instructors.split(",") if name]
    options = {"site": site, "quick": quick, "crops": crops, "group": group, "instructors": names}
    for line in setup.init(folder, **options):
        typer.echo(line)
