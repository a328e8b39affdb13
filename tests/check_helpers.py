"""What the tests of checks share: the solution's text, and a check's verdicts by part."""

from course.labs import exercises
from course.labs.checks import Checked

TEXT = (exercises.SOLUTIONS / "train.py").read_text()

SOLVED = exercises.render(TEXT, exercises.count(TEXT))


def verdicts(done: Checked) -> dict[str, str]:
    return {part.part: part.verdict for part in done.parts}
