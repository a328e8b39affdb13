"""The layout: each folder imports only from those below it, and nothing imports in a circle."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
LIBRARIES = (
    "fast_resnet",
    "slurm_box",
    "trainspeed",
)  # all may import them; they import nothing of the project
PACKAGES = {  # each with those that it may import
    **dict.fromkeys(LIBRARIES, ()),
    "course": LIBRARIES,
    "idr_pytools": ("course", *LIBRARIES),
    "labs": ("course", *LIBRARIES),
    "electives": ("course", "labs", *LIBRARIES),
    "race": ("course", *LIBRARIES),
    "tools": ("course", "labs", "electives", "race", *LIBRARIES),
}
# Of course/, from the bottom up: a room may import from itself and from those before it.
ROOMS = (
    "_compat",
    "text",
    "config",
    "runs",
    "data",
    "charts",
    "training",
    "jobs",
    "analysis",
    "checks",
    "widgets",
    "lab",
    "cli",
    "__main__",
)
# What labs, electives and the race import from.
DOORS = (
    "course",
    "course._compat",
    "course.lab",
    "course.runs",
    "course.charts",
    "course.analysis",
    "course.data",
    "course.training",
    "course.jobs",
)
# Modules of labs that need the inside of the course, each with its reason.
BESIDE_DOORS = {
    "labs.augmentation.mixing_checks": "a small run calls it, with the checks' fake accelerator",
    "labs.pipeline.configs": "it looks for open TODOs, as checks do",
    "labs.start_here.batch_script": "it checks a file, and reports and stores that as `check` does",
    "race.course_commands": "it adds commands to the program `course`",
}
LAZY = {"course", "trainspeed", "slurm_box", "course.checks.discovery", "course.__main__"}


@cache
def modules(project: Path) -> dict[str, Path]:
    """Return every module of the packages by its dotted name."""
    paths = [path for name in PACKAGES for path in sorted((project / name).rglob("*.py"))]
    names = {}
    for path in paths:
        if "tests" not in path.parts[len(project.parts) :]:
            name = ".".join(path.relative_to(project).with_suffix("").parts)
            names[name.removesuffix(".__init__")] = path
    return names


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def violations(project: Path) -> Iterator[str]:
    """Yield the imports that lead upwards, or to the repository's tests and benchmarks."""
    known = modules(project)
    for name, path in known.items():
        package, _, rest = name.partition(".")
        room = rest.partition(".")[0]
        for target in imports(path, known):
            other, _, rest = target.partition(".")
            if other in (*PACKAGES, "benchmarks", "research", "tests"):
                is_above = other != package and other not in PACKAGES[package]
                if package == other == "course" and room and rest:
                    is_above = ROOMS.index(rest.partition(".")[0]) > ROOMS.index(room)
                if is_above:
                    yield f"{name} imports {target}"


def test_imports_run_one_way() -> None:
    assert [*violations(PROJECT)] == []


def beside_doors(project: Path) -> Iterator[str]:
    """Yield what labs, electives and the race import from inside `course`."""
    for name, path in modules(project).items():
        if name.partition(".")[0] in ("labs", "electives", "race") and name not in BESIDE_DOORS:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                    yield from (f"{name}: {other}" for other in names if other.startswith("course"))
                elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("course."):
                    offered = dir(import_module(node.module)) if node.module in DOORS else ()
                    names = [alias.name for alias in node.names if alias.name not in offered]
                    yield from (f"{name}: {node.module}.{other}" for other in names)


def test_labs_import_from_doors() -> None:
    """The course may change behind them."""
    assert [*beside_doors(PROJECT)] == []


def test_no_circle() -> None:
    known = modules(PROJECT)
    arrows = {
        name: {target for target in imports(path, known) if target in known and target != name}
        for name, path in known.items()
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_modules_are_imported_by_name_only_where_they_are_discovered() -> None:
    call = re.compile(r"\b(import_module|__import__)\(")
    dynamic = {name for name, path in modules(PROJECT).items() if call.search(path.read_text())}
    assert dynamic - LAZY == {"course.checks.small_runs"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_tests_of_a_library_need_only_it(library: str) -> None:
    ours = {path.stem for path in [*PROJECT.iterdir(), *(PROJECT / "tests").glob("*.py")]}
    for path in (PROJECT / library).rglob("*.py"):
        foreign = {target.partition(".")[0] for target in imports(path, {})} & ours
        assert foreign <= {library}, path
