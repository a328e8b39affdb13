"""Helpers for tests of checks: the solution's text, a check's verdicts, ranks to train on."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from job_helpers import SCRIPTS, run_forked

from course.checks import exercises
from course.checks.verdict import Checked
from course.runs.run import Run

TEXTS = {path.name: path.read_text() for path in exercises.solutions()}
TEXT = TEXTS["train.py"]
SOLVED = exercises.render(TEXT, exercises.count(TEXT))
ALL_S = 900  # for all runs on one number of ranks: four minutes on two idle cores


@cache  # most answers use the same few views
def view_of(todo: int, solved: int | None = None) -> str:
    """Return the script that has a TODO, with `solved` TODOs filled; None: with all of them."""
    text = TEXTS[exercises.solution_of(todo)]
    return exercises.render(text, exercises.count(text) if solved is None else solved)


def verdicts(done: Checked) -> dict[str, str]:
    return {part.part: part.verdict for part in done.parts}


@contextmanager
def ranks_training(every: list[Run], ranks: int, port: int) -> Iterator[None]:
    """Train all runs one after another on this many ranks; they are over at the end.

    Args:
        port: of the first run; each run has a different one. Below `group.PORTS`, which jobs use.
    """
    folders = [str(run.folder) for run in every]
    shared = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "NO_HOST_MEMORY": "1",
    }

    def train(rank: int, place: str) -> int:
        (folder := Path(place, str(rank))).mkdir()
        env = shared | {"RANK": str(rank)}
        script = SCRIPTS / "train_ranks.py"
        done = run_forked(script, str(port), *folders, folder=folder, env=env, timeout_s=ALL_S)
        return done.returncode

    with TemporaryDirectory() as place, ThreadPoolExecutor(ranks) as pool:
        trained = [pool.submit(train, rank, place) for rank in range(ranks)]
        yield
        assert [future.result() for future in trained] == [0] * ranks
