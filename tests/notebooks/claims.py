"""What a notebook and its quiz say, as text: so that a test can hold it against the records."""

import json
from functools import cache

import torch

from course.labs.quizzes import FOLDER
from course.runs.run import PROJECT
from course.training import models


def text_of(notebook: str) -> str:
    """All prose of a notebook, on one line."""
    cells = json.loads((PROJECT / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return " ".join("\n".join(prose).split())


def text_of_quiz(quiz: str) -> str:
    """All that a quiz says, on one line."""
    return " ".join((FOLDER / f"{quiz}.toml").read_text(encoding="utf-8").split())


@cache
def network(name: str, classes: int = 1000, image_px: int = 224) -> torch.nn.Module:
    """A network of the course without its numbers, for what shapes tell; not to be changed."""
    with torch.device("meta"):
        return models.create(name, classes, image_px)
