"""Commands of a class: init, join, leave, end, and the instructor's view; and a raised hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from course.cli import tables
from course.cli.options import AsJson, Yes, app, confirm
from tools.classroom import VARIABLE

if TYPE_CHECKING:
    import click

    from tools.classroom.report import Histogram

SHOW = "show"  # the command that `course class FOLDER` means
NEVER_SENT = (
    "Never sent: scripts, logs, file names, error messages, and the notes of your predictions."
)
EXAMPLE = (
    '"amp": {"state": "failed", "tries": 3, "cause": "correct: number of updates per step … '
    'update once per batch"}, with its time'
)
Folder = Annotated[
    str, typer.Argument(help="The class folder; by default, the one in COURSE_CLASS.")
]


class ClassGroup(TyperGroup):
    """A group whose first word may also be a folder, `course class /shared/class`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command `show` before a first word that is no command."""
        is_class = os.environ.get(VARIABLE) and not args
        if is_class or (args and args[0] not in (*self.commands, "--help")):
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


class_app = typer.Typer(
    cls=ClassGroup,
    no_args_is_help=True,
    help="Set up a class, join one, or show who is stuck: course class FOLDER.",
)
app.add_typer(class_app, name="class")


@class_app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="On a disk that learners and their jobs can read.")
    ],
    site: Annotated[str, typer.Option(help="Site of the class's jobs; by default local.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Size of the notebooks' runs; full is for GPUs.")
    ] = True,
    group: Annotated[str, typer.Option(help="A group that contains only instructors.")] = "",
    instructors: Annotated[
        str, typer.Option(help="Other instructors' accounts, such as a,b.")
    ] = "",
) -> None:
    """Create the class folder; if it exists, replace the course in it, and keep the rest."""
    from tools.classroom import setup

    names = [name for name in instructors.split(",") if name]
    options = {"site": site, "quick": quick, "group": group, "instructors": names}
    for line in setup.init(folder, **options):
        typer.echo(line)


@class_app.command(SHOW)
def show(
    folder: Folder = "",
    live: Annotated[
        bool, typer.Option("--live", help="Keep the page up to date until Ctrl-C.")
    ] = False,
    prediction: Annotated[
        str, typer.Option(help="Show only the predictions with this key, without names.")
    ] = "",
    csv: Annotated[
        str, typer.Option(help="Also write this file, a line per learner and exercise.")
    ] = "",
    json_: AsJson = False,
) -> None:
    """Show who is stuck, why checks fail and what learners predicted; also write class.html."""
    from course.runs.files import write_atomically
    from tools.classroom import drop_box, page, report

    place = _class(folder)
    if prediction:
        chart = report.histogram(drop_box.read(place)[0], prediction)
        _show_histogram(chart, json_=json_)
        path = page.save(page.PREDICTION_PAGE, page.render_prediction(chart))
        typer.echo(f"as a page: {path}", err=json_)
        return
    learners, problems, jobs, path = page.write(place, live=live)
    if csv:
        try:
            write_atomically(Path(csv), report.as_csv(learners), mode=0o600)
        except OSError as error:
            raise ValueError(f"--csv: {csv} can't be written: {error.strerror}") from None
    if json_:
        tables.as_json(report.as_values(learners, problems, jobs))
    else:
        _show_class(learners, jobs)
    for line in problems:
        typer.echo(line, err=True)
    typer.echo(f"as a page, which only you can read: {path}", err=json_)
    if live:
        page.keep_writing(place)


def _class(folder: str) -> Path:
    from tools.classroom import membership

    try:
        return membership.find_class(folder)
    except ValueError as error:
        known = ", ".join(typer.main.get_command(class_app).commands)
        raise ValueError(f"{error}. The commands of course class: {known}") from None


def _show_class(learners: list, jobs: dict[str, str]) -> None:
    from tools.classroom import report

    hands = [(x.name, x.hand) for x in report.in_order(learners) if x.hand]
    if hands:  # a table: in lines, a long question could look like a second learner's
        rows = [[who, report.age(report.minutes_since(x.at)), x.check, x.text] for who, x in hands]
        tables.show_table(["asks", "for", "at", "question"], rows)
    begun, rows = report.begun(learners, report.MOST_COLUMNS), report.summary(learners, jobs)
    states = {
        learner.name: " ".join(
            "".join(report.cell(learner, name).sign for name in names) for names in begun.values()
        )
        for learner in learners
    }
    rows = [row | {"states": states[row["learner"]]} for row in rows]
    if not rows:
        typer.echo("No one has joined yet.")
        return
    typer.echo()
    tables.show_table([*rows[0]], [row.values() for row in rows])
    typer.echo(f"states of those checked last, by lab ({', '.join(begun)}): {report.LEGEND}\n")
    causes = [
        [row.exercise, row.passed, row.failed, f"{row.learners}× {row.cause}" * bool(row.cause)]
        for row in report.causes(learners)
    ]
    tables.show_table(["exercise", "passed", "fail", "most frequent cause"], causes)


def _show_histogram(chart: Histogram, *, json_: bool) -> None:
    from dataclasses import asdict

    if json_:
        tables.as_json(asdict(chart))
        return
    typer.echo(f"{chart.key}: {chart.count} predictions")
    width = max(len(bar.label) for bar in chart.bars)
    for bar in chart.bars:
        measured = f"  ← measured: {chart.measured}" if bar.is_measured else ""
        typer.echo(f"  {bar.label:>{width}} {'█' * bar.count} {bar.count or ''}{measured}")


@class_app.command()
def join(folder: Folder = "", yes: Yes = False) -> None:
    """Let your instructor see where you are stuck: show what will be sent, then send it."""
    from course.checks import shared_progress
    from tools.classroom import membership

    place = membership.find_class(folder)
    shared_progress.check_drop_box(place)
    typer.echo("Your instructor gets this file, now and after each check, answer and prediction:\n")
    typer.echo(json.dumps(message := shared_progress.message({}), indent=1))
    if not message["checks"]:
        typer.echo(f"A failed check looks like this: {EXAMPLE}")
    typer.echo(f"\n{NEVER_SENT} Only the class's instructors can read the file.")
    confirm(f"Join {place}?", yes=yes, default=True)
    typer.echo(f"sent: {membership.join(place)}\nTo stop sending and delete it: course class leave")


@class_app.command()
def leave() -> None:
    """Delete what you sent to the class, and stop sending."""
    from tools.classroom import membership

    typer.echo(f"You left {membership.leave()}; your file there is deleted.")


@class_app.command()
def end(folder: Folder = "", yes: Yes = False) -> None:
    """Delete the drop box and all files in it, so that learners stop sending."""
    from tools.classroom import drop_box

    place = _class(folder)
    confirm(f"Delete the files of all learners in {place}?", yes=yes)
    count, problems = drop_box.remove(place)
    for line in problems:
        typer.echo(line, err=True)
    typer.echo(f"{count} files deleted; the class has ended")
    raise typer.Exit(bool(problems))


@app.command("help")
def raise_hand(
    question: Annotated[str, typer.Argument(help="Your question, in quotes.")] = "",
    done: Annotated[bool, typer.Option("--done", help="Lower your hand.")] = False,
) -> None:
    """Raise your hand: send your instructor a question, with the check that failed last."""
    from tools.classroom import membership

    if done == bool(question.strip()):
        raise ValueError(
            'expected a question, such as course help "why is the loss nan?", or --done'
        )
    membership.raise_hand(question)
    typer.echo(
        "Your hand is lowered." if done else "Your hand is raised. To lower it: course help --done"
    )
