"""What the tests of checks share: the solution's text, a check's verdicts, ranks to train on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from answers.lines import Answer
from job_helpers import SCRIPTS

from course.labs import exercises
from course.labs.checks import Checked
from course.runs.run import Run

TEXTS = {path.name: path.read_text() for path in exercises.solutions()}
TEXT = TEXTS["train.py"]
SOLVED = exercises.render(TEXT, exercises.count(TEXT))


def view_of(todo: int, solved: int | None = None) -> str:
    """The script that has a TODO, with so many filled; None: with all of them."""
    text = TEXTS[exercises.solution_of(todo)]
    return exercises.render(text, exercises.count(text) if solved is None else solved)


def text_of(answer: Answer) -> str:
    """The solution as somebody else wrote it."""
    text = view_of(answer.todo)
    for old, new in answer.edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def verdicts(done: Checked) -> dict[str, str]:
    return {part.part: part.verdict for part in done.parts}


@contextmanager
def ranks_training(every: list[Run], ranks: int, port: int) -> Iterator[None]:
    """Train all runs, one after another, on so many ranks at once; they are over at the end."""
    folders = [str(run.folder) for run in every]
    command = [sys.executable, str(SCRIPTS / "train_ranks.py"), str(port), *folders]
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "NO_HOST_MEMORY": "1",
    }
    processes = [subprocess.Popen(command, env={**env, "RANK": str(rank)}) for rank in range(ranks)]
    try:
        yield
        assert [process.wait(timeout=300) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
