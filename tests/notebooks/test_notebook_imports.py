"""What notebooks import exists: executing them all takes an hour, and reading imports seconds."""

import ast
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from course.runs import PROJECT

PACKAGES = ("course", "labs", "electives", "race", "tools", "trainspeed", "fast_resnet")
PACKAGES += ("slurm_box", "idr_pytools")
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))


def imported(notebook: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for what a notebook's cells import from the project."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        lines = [line for line in cell["source"] if not line.lstrip().startswith(("%", "!"))]
        if cell["cell_type"] == "code":
            for node in ast.walk(ast.parse("".join(lines))):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PACKAGES:
                    yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_what_exists(notebook: Path) -> None:
    for module, name in imported(notebook):
        if not hasattr(import_module(module), name):  # it may be a module that nothing imported
            import_module(f"{module}.{name}")
