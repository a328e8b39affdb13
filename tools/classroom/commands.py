"""Commands of a class: init, join, leave, end, and the instructor's view; and a raised hand."""

from __future__ import annotations

import typer

from course.cli.options import app

class_app = typer.Typer(no_args_is_help=True, help="A class: its folder, and who is stuck.")
app.add_typer(class_app, name="class")
