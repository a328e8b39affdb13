"""The house: rooms in their order, each importing from those before it, and no circle."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
# From the ground up: a room may import from itself and from those before it.
ROOMS = (
    "valid",
    "text",
    "config",
    "runs",
    "data",
    "charts",
    "training",
    "jobs",
    "traces",
    "topics",
    "days",
    "labs",
    "race",
    "workshop",
    "widgets",
    "cli",
    "__main__",
)
FACE = "course"  # of a notebook: it names everything, and imports it when it is asked for


def modules(project: Path) -> dict[str, Path]:
    """Every module of the course, by its dotted name."""
    found = {}
    for path in sorted((project / "course").rglob("*.py")):
        name = ".".join(path.relative_to(project).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache  # two tests ask, and to walk through a module takes longest
def statements(path: Path) -> list[ast.stmt]:
    """A file's statements that import something, wherever they stand."""
    every = ast.walk(ast.parse(path.read_text()))
    return [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The course's modules that a file imports, wherever in it."""
    for node in statements(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def room(module: str) -> str:
    """The first folder, or file, below the course."""
    return module.partition(".")[2].partition(".")[0]


def wrong_ways(project: Path) -> list[str]:
    """Imports that lead upwards, or out of the course into the repository's tools."""
    known, found = modules(project), []
    for name, path in known.items():
        for target in imports(path, known):
            if target.split(".")[0] in ("tools", "benchmarks", "research", "tests", "idr_pytools"):
                found.append(f"{name} imports {target}")
            if target == FACE and name != FACE:  # through the face a room could climb unseen
                found.append(f"{name} imports from the face")
            if not target.startswith("course.") or name == FACE:
                continue
            if ROOMS.index(room(target)) > ROOMS.index(room(name)):
                found.append(f"{name} imports {target}, and {room(target)} lies above {room(name)}")
    return found


def test_every_room_imports_from_those_below_it() -> None:
    assert wrong_ways(PROJECT) == []


def test_no_circle() -> None:
    known = modules(PROJECT)
    arrows = {
        name: {each for each in imports(path, known) if each in known and each != name}
        for name, path in known.items()
        if name != FACE
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_nothing_is_imported_by_a_string() -> None:
    """But for the face, which resolves names late, and what a warm start imports beforehand."""
    call = re.compile(r"\b(import_module|__import__)\(")
    by_string = [name for name, path in modules(PROJECT).items() if call.search(path.read_text())]
    assert by_string == [FACE, "course.jobs.warm.start"]


def test_every_room_says_what_it_is_for() -> None:
    for folder in {path.parent for path in modules(PROJECT).values()}:
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert said, f"{folder}/__init__.py says nothing"


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    for name, text in {
        "runs/run.py": "def f():\n    from course.labs import checks\n",
        "labs/checks.py": "from course.runs import run\nimport tools.pages\n",
    }.items():
        path = tmp_path / "course" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert wrong_ways(tmp_path) == [
        "course.labs.checks imports tools.pages",
        "course.runs.run imports course.labs.checks, and labs lies above runs",
    ]
