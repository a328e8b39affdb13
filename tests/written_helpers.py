"""Define functions as learners do in a notebook's cell, but in a file whose source Python finds."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.checks import discovery

IMPORTS = """import math
import time
import torch
from time import perf_counter
from labs import profiler as lab
"""


def cell_of(lab: str, function: str) -> str:
    """Return the code of the cell of a lab's notebook that defines a function."""
    cells = json.loads(discovery.notebook_of(lab).read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (cell,) = [text for text in texts if re.search(rf"^def {function}\(", text, re.MULTILINE)]
    return cell


def filled(cell: str, *answers: str) -> str:
    """Return the cell with its blanks filled, one after another."""
    for answer in answers:
        assert "..." in cell, f"no blank for {answer!r}"
        cell = cell.replace("...", answer, 1)
    return cell


def defined(text: str, function: str, folder: Path, imports: str = IMPORTS) -> Callable[..., Any]:
    """Return the function that a text defines."""
    # A unique name: Python mistakes a text of equal length and time for the previous one.
    path = folder / f"{function}_{len([*folder.glob('*.py')])}.py"
    path.write_text(imports + text + "\n")
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{function}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)
