"""Helpers for tests of checks: the solution's text, a check's verdicts."""

from course.checks import exercises
from course.checks.verdict import Checked

TEXTS = {path.name: path.read_text() for path in exercises.solutions()}
TEXT = TEXTS["train.py"]
SOLVED = exercises.render(TEXT)


def verdicts(done: Checked) -> dict[str, str]:
    return {part.part: part.verdict for part in done.parts}
