"""Commands that the pages name, with their options, exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from course import __main__  # noqa: F401 - it adds the commands of other packages
from course.cli.options import app
from course.runs.run import PROJECT
from tools.classroom.setup import first_line, next_line

GUIDE = (PROJECT / "docs" / "instructors.md").read_text()
PAGES = sorted(path for place in (".", "docs") for path in (PROJECT / place).glob("*.md"))


def commands_in(page: str) -> Iterator[list[str]]:
    """Yield the words after `course` of each command in a block or between backticks."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    for line in [*blocks.splitlines(), *re.findall(r"`([^`]+)`", prose)]:
        for part in re.split(r"&&|;|\|", re.sub(r"(^|\s)#.*", "", line)):
            words = [w for w in part.split() if not re.match(r"[A-Z_]+=|sudo$", w)]
            if len(words) > 1 and Path(words[0]).name == "course":
                yield words[1:]


def unknown_words(words: list[str]) -> list[str]:
    """Return the command or the options that do not exist."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *rest = words
        if name not in command.commands and "show" not in command.commands:
            return [name]
        # `course class FOLDER` means `course class show FOLDER`.
        command, words = command.commands.get(name) or command.commands["show"], rest
    options = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    options |= {"--help"}
    words = words[: words.index("--")] if "--" in words else words
    return [w for w in words if w.startswith("--") and w.partition("=")[0] not in options]


def test_the_instructors_guide_stays_short() -> None:
    """Of what is written by hand: the table of labs is generated."""
    by_hand, tables = re.subn(r"<!-- labs:.*?<!-- end of the labs -->", "", GUIDE, flags=re.DOTALL)
    assert tables == 1 and len(by_hand.split()) <= 1500


def test_the_guide_shows_the_lines_that_init_prints() -> None:
    folder = Path("/shared/workshop/class")
    assert f"\n{first_line(folder)}\n" in GUIDE and f"`{next_line(folder)}`" in GUIDE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_exist(page: Path) -> None:
    wrong = {" ".join(words): unknown_words(words) for words in commands_in(page.read_text())}
    assert not {command: words for command, words in wrong.items() if words}
