"""Small runs of a check: scripts that don't end, that end too early, or that start themselves."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from check_helpers import TEXT

from course.checks import compare, exercises, small_runs
from course.checks.compare import ENDED, Folder, error_of
from course.checks.script_edits import compile_script
from course.config import rung

pytestmark = pytest.mark.slow
SOLVED = exercises.render(TEXT, exercises.upto("distributed_validation"))
BEGIN = "    randomness.seed_all(cfg)  # the same"
END = "            run.save_weights(validated)\n"
GUARDED = """if __name__ == "__main__":
    with recording() as run:
        main(run)
"""
UNGUARDED = "with recording() as run:\n    main(run)\n"


def at_begin(lines: str) -> str:
    """Return the script with lines at the beginning of main."""
    assert SOLVED.count(BEGIN) == 1
    return SOLVED.replace(BEGIN, f"{lines}\n{BEGIN}")


NEVER_END = {
    "endless": at_begin("    while True:\n        pass"),
    "waits": at_begin("    import threading\n    threading.Event().wait()"),
    "sleeps": at_begin("    import time\n    time.sleep(10000)"),
}
LEAVES, LEAVES_HARD = (
    "    if run.rank == 1:\n        " + x for x in ("sys.exit(0)", "os._exit(0)")
)
END_EARLY = {
    "exits": at_begin(LEAVES),
    "exits at the end": SOLVED.replace(END, f"{END}{LEAVES}\n"),
    "exits hard": SOLVED.replace(END, f"{END}{LEAVES_HARD}\n"),
}
# Short limits, in a process of their own.
SERVE = """
import sys
from pathlib import Path
from course.checks import small_runs
small_runs.CPU_S, small_runs.IDLE_S, small_runs.BUSY_S = 5, 20.0, 0.1
small_runs.serve(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def errors() -> Iterator[dict[str, str]]:
    """Return the error of each script; "" if its training was complete."""
    config = rung("device", **compare.SMALL | {"collective_timeout_s": 5})
    folder = Folder()
    stuck = {name: folder.add(name, text, config, 1) for name, text in NEVER_END.items()}
    request = {"tasks": folder._tasks, "imports": ["torch.distributed"], "shards": False}
    command = [sys.executable, "-c", SERVE, str(folder.root)]
    subprocess.run(command, input=json.dumps(request) + "\n", text=True, check=True, timeout=500)
    folder._tasks = []
    runs = {x: folder.add(x, f"import os, sys\n{text}", config, 2) for x, text in END_EARLY.items()}
    runs["unguarded"] = folder.add("unguarded", SOLVED.replace(GUARDED, UNGUARDED), config, 1)
    folder.work()
    steps = [len(runs["unguarded"].rank_steps(0)), config.epochs * config.steps]
    yield {name: error_of(run) for name, run in (stuck | runs).items()} | {"steps": steps}
    folder.stop()


def line_of(text: str, code: str) -> int:
    return next(at for at, line in enumerate(text.splitlines(), 1) if line.strip() == code)


@pytest.mark.parametrize(
    "name, code, words",
    [
        ("endless", "pass", "5 s of computing, an endless loop"),
        ("waits", "threading.Event().wait()", "it only waited for 20 s"),
        ("sleeps", "time.sleep(10000)", "it only waited for 20 s"),
    ],
)
def test_a_script_that_never_ends_says_where_it_was(errors, name, code, words) -> None:
    assert words in errors[name]
    line = int(re.search(r"\(train.py, line (\d+)\)", errors[name])[1])
    assert line_of(NEVER_END[name], code) - line in (0, 1)  # of a loop, either line


def test_a_rank_that_ends_early_is_an_error_in_words(errors: dict[str, str]) -> None:
    assert errors["exits hard"] == ENDED
    assert errors["exits"]
    assert errors["exits at the end"] in ("", ENDED)


def test_a_script_without_a_guard_trains_once(errors: dict) -> None:
    assert errors["unguarded"] == ""
    assert errors["steps"][0] == errors["steps"][1]


def test_compiling_leaves_out_only_what_starts_the_training() -> None:
    assert SOLVED.endswith(GUARDED)
    space = {"__name__": "train"}
    exec(compile_script("started = []\ndef main(run): started.append(run)\nmain(1)\n"), space)
    assert space["started"] == []
    space["main"](2)
    assert space["started"] == [2]
    with pytest.raises(SyntaxError) as caught:
        compile_script("x = 1\ny = (\n")
    assert (caught.value.filename, caught.value.lineno) == ("train.py", 2)


def test_waiting_is_longer_than_a_collective() -> None:
    """Otherwise ranks that lost each other are ended before their own error."""
    assert compare.SMALL["collective_timeout_s"] < small_runs.IDLE_S < small_runs.LIMIT_S
