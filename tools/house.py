"""Print what one has to know of the course: its doors, its names, and the lines behind a launch."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import course
from course.runs import PROJECT

LABS = ("labs", "electives")
TODAY = ("course", *LABS, "race", "tools", "fast_resnet", "slurm_box", "idr_pytools", "solutions")
SCOPE = (*TODAY, "trainspeed")
# What `launch`, `wait` and `report` import in a notebook, and a job in its processes.
LAUNCH = ["course.jobs.launch", "course.checks.report"]
LAUNCH += ["course.jobs.supervise", "course.training.recorder"]
PROBE = "trainspeed.probe"  # it times scripts that have no meter
# A lab by its module; the race; the trials of a search.
NAMED = re.compile(
    r"(?<![.\w])(?:labs|electives)\.[a-z]\w+|\b(?:race|racing|trials?|optuna)\b", re.I
)
PRIVATE = re.compile(r"_[A-Za-z]")


@cache
def modules() -> dict[str, Path]:
    """Return the path of each module by its name, without tests."""
    found = {}
    for path in [path for folder in SCOPE for path in sorted((PROJECT / folder).rglob("*.py"))]:
        parts = path.relative_to(PROJECT).with_suffix("").parts
        if "tests" not in parts:
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def inside(*folders: str) -> dict[str, Path]:
    """Return the modules in some of the folders."""
    return {name: path for name, path in modules().items() if name.split(".")[0] in folders}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for all that a file imports, wherever in it; the name may be ""."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def from_course() -> set[tuple[str, str]]:
    """Return what labs import from the course, without the names of PyTorch that it passes on."""
    found = {item for path in inside(*LABS).values() for item in imports(path)}
    ours = {(module, name) for module, name in found if f"{module}.".startswith("course.")}
    return {(module, name) for module, name in ours if module != "course._compat"}


def through_modules() -> set[str]:
    """Return what labs use of modules that they import from the course: `facts.if_complete`."""
    found, offered = set(), from_course()
    for path in inside(*LABS).values():
        modules_of = {item[1] for item in imports(path) if item in offered and item[1].islower()}
        used = [node for node in nodes_of(path) if isinstance(node, ast.Attribute)]
        found |= {ast.unparse(node) for node in used if ast.unparse(node.value) in modules_of}
    return found


def lines(paths: Iterable[Path]) -> int:
    """Count the lines of files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def behind_launch(*, is_own: bool = False) -> set[str]:
    """Return the modules in LAUNCH, those that they import, and so on.

    Args:
        is_own: include what only times a script of the learner's own.
    """
    found, todo = set(), [*LAUNCH]
    while todo:
        if (name := todo.pop()) in modules() and name not in found:
            if name == PROBE and not is_own:
                continue
            found.add(name)
            todo.append(name.rpartition(".")[0])
            for module, item in imports(modules()[name]):
                todo += [module, f"{module}.{item}"]
    return found


def private_torch(path: Path) -> Iterator[str]:
    """Yield private names of PyTorch: not those of `self`, of other modules, or of the file."""
    names = [[*module.split("."), name] for module, name in imports(path)]
    ours = [parts for parts in names if parts[0] == "torch"]
    others = {"self", "cls", *(parts[-1] or parts[0] for parts in names if parts not in ours)}
    attributes = [node for node in nodes_of(path) if isinstance(node, ast.Attribute)]
    own = {getattr(node, "name", "") for node in nodes_of(path)}
    stored = [node for node in attributes if isinstance(node.ctx, ast.Store)]
    own |= {node.attr for node in stored if ast.unparse(node.value) not in [x[-1] for x in ours]}
    if ours:
        yield from (".".join(parts) for parts in ours if any(map(PRIVATE.match, parts)))
        private = [node for node in attributes if PRIVATE.match(node.attr)]
        used = [node for node in private if ast.unparse(node.value) not in others]
        yield from (ast.unparse(node) for node in used if node.attr not in own)


def of_lab(notebook: Path) -> set[str]:
    """Return the names `lab.x` that a notebook's code uses."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return {*re.findall(r"\blab\.(\w+)", code)}


def measure() -> dict[str, int]:
    """Return each number by what it counts."""
    of_labs = {path.stem: of_lab(path) for path in (PROJECT / "notebooks").glob("*.ipynb")}
    texts = [line for path in inside("course").values() for line in path.open(encoding="utf-8")]
    return {
        "modules of course that labs import from": len({module for module, _ in from_course()}),
        "names that labs import from them": len(from_course()),
        "names that labs reach through modules of the doors": len(through_modules()),
        "names of `import course`": len(course.__all__),
        "lines behind launch, wait and report": lines(modules()[n] for n in behind_launch()),
        "lines behind the launch of an own script": lines(
            modules()[n] for n in behind_launch(is_own=True)
        ),
        "lines of course that name labs, race or search": len([*filter(NAMED.search, texts)]),
        "private names of PyTorch": sum(1 for p in modules().values() for _ in private_torch(p)),
        "lines without tests, but for trainspeed": lines(inside(*TODAY).values()),
        "lines of trainspeed": lines(inside("trainspeed").values()),
        "lab.x in notebooks": sum(map(len, of_labs.values())),
        "lab.x in the notebook with the most": max(map(len, of_labs.values())),
    }


if __name__ == "__main__":
    for what, number in measure().items():
        print(f"{number:7,}  {what}")
