"""Train small runs, each in a process whose observers misspell a name of the evidence.

    misspelt_evidence.py ROOT < REQUEST

REQUEST: a JSON list of [name, small run's folder in ROOT, number of ranks]; "" misspells nothing.
"""

import json
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torchvision  # noqa: F401

import course.training

EVIDENCE = Path(course.training.__file__).parent / "evidence"


def misspell(name: str, folder: Path) -> None:
    """Let this process import observers that misspell the name wherever they use it."""
    (folder / "evidence").mkdir()
    for path in EVIDENCE.glob("*.py"):
        text = re.sub(rf"\b{name}\b", f"{name}_misspelt", path.read_text())
        (folder / "evidence" / path.name).write_text(text)
    course.training.__path__.insert(0, str(folder))


root = Path(sys.argv[1])
for name, place, ranks in json.loads(sys.stdin.read()):
    if (pid := os.fork()) == 0:
        with TemporaryDirectory() as folder:
            if name:
                misspell(name, Path(folder))
            from course.checks import small_runs

            os.environ["COURSE_DATA"] = str(root / "data" / "default")
            request = {"tasks": [[place, ranks, ""]], "imports": [], "shards": False}
            small_runs.work(root, request, lambda ended: None)
        os._exit(0)
    os.waitpid(pid, 0)
