"""Each script's settings are those that it reads, itself or through functions that it calls."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import pytest

from course.config import SCRIPTS, Config
from course.runs.run import PROJECT

FOLDERS = ("course/data", "course/training", "labs/pipeline", "labs/restart")
# They look at the settings of all scripts, so what they read counts only if no script reads it, or
# if all scripts have it.
OBSERVERS = ("meter.py", "recorder.py", "observers.py", "interruptions.py")
OTHERS = ("memory_prediction.py",)  # no script calls it


def own_reads(tree: ast.AST) -> set[str]:
    """Return the settings that code reads, as `cfg.lr`, `getattr(cfg, …)`, `run.save_weights()`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.DictComp) and "getattr(cfg" in ast.unparse(node):
            names |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
    return names & {name for kind in SCRIPTS.values() for name in kind.__dataclass_fields__}


def _is_config(node: ast.expr) -> bool:
    return ast.unparse(node) in (
        "run",
        "cfg",
        "config",
        "run.config",
        "self.config",
        "self._config",
    )


def names_in(tree: ast.AST) -> set[str]:
    """Return the names in code, and what it uses of modules, such as `optimizers.create`."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    return {ast.unparse(node) for node in nodes}


@cache
def definitions() -> dict[str, list[ast.AST]]:
    """Return the functions, classes and constants that scripts can call, by name."""
    found = defaultdict(list)
    for path in (path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if path.name not in (*OBSERVERS, *OTHERS) and "tests" not in path.parts:
                targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
                for name in filter(None, [getattr(node, "name", ""), *map(_text, targets)]):
                    found[name].append(node)
                    found[f"{path.stem}.{name}"].append(node)
    return found


def _text(node: ast.AST | None) -> str:
    return ast.unparse(node) if node else ""


def observed() -> set[str]:
    files = (path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))
    paths = (path for path in files if path.name in OBSERVERS)
    return set().union(*(own_reads(ast.parse(path.read_text())) for path in paths))


def called_reads(names: Iterable[str]) -> set[str]:
    """Return the settings that definitions read which are called by these names, or by those."""
    seen, reads, waiting = set(), set(), [*names]
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        for node in definitions().get(name, ()):
            reads |= own_reads(node)
            waiting += names_in(node)
    return reads


def script_tree(script: str) -> ast.AST:
    return ast.parse((PROJECT / "solutions" / script).read_text())


@cache
def reads(script: str) -> set[str]:
    tree = script_tree(script)
    return own_reads(tree) | called_reads(names_in(tree))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_the_settings_that_it_reads_and_no_others(script: str) -> None:
    settings = {*SCRIPTS[script].__dataclass_fields__} - {"rung", "script"}
    missing = own_reads(script_tree(script)) - settings
    assert not missing, "read by the script, and missing in its class"
    common = {*Config.__dataclass_fields__}
    read_for_all = observed() - (set().union(*map(reads, SCRIPTS)) - common)
    ignored = settings - reads(script) - read_for_all
    assert not ignored, "in its class, or in Config, and not read by the script"


def test_settings_of_several_scripts_have_one_default_and_one_type() -> None:
    for kind in SCRIPTS.values():
        for name, field in kind.__dataclass_fields__.items():
            for other in SCRIPTS.values():
                default = getattr(other, name, field.default)
                assert name == "script" or repr(default) == repr(field.default)
