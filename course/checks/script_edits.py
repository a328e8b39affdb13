"""Find the TODOs whose code was edited in a script: its statements differ from a view's.

Comments, empty lines and formatting are not code. A statement that was added next to a TODO's lines
belongs to the TODO if it could do what the solution does.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain
from textwrap import dedent
from types import CodeType
from typing import Any, NamedTuple

MARK = re.compile(r"\s*#\s*TODO (\w+)[:,]")
SOLVED = re.compile(r"^\s*# TODO (\w+), solved:", re.MULTILINE)
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
ANYWHERE = {"cfg", "run", "self"}  # names that no TODO is recognised by
parse = lru_cache(maxsize=64)(ast.parse)


class Place(NamedTuple):
    """An exercise's lines in a view, from its comment to before `stop`, and the two codes.

    order: its position among all exercises.
    """

    name: str
    start: int
    stop: int
    solution: str
    before: str
    order: int


class Unit(NamedTuple):
    """A statement, or a compound one's header; or an exercise's comment, with its name."""

    line: int
    key: str | tuple[str]
    node: Any = None


def edited_todos(
    view: str, places: Sequence[Place], script: str, solved: str, *, exactly: bool
) -> set[str]:
    """Return the names of the exercises whose code in a script differs from a view's.

    Args:
        solved: the view in which all TODOs are solved.
        exactly: indentation counts, and so does each statement next to a TODO that has an effect.
    """
    try:
        old, new = _units(view, exactly), _units(script, exactly)
        effects = Effects(solved, script)
    except (SyntaxError, ValueError):  # in the middle of an edit: every line counts
        old, new, effects = _lines(view), _lines(script), None
    keys = [unit.key for unit in old], [unit.key for unit in new]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    edits = [(i, j, new[k:m]) for kind, i, j, k, m in matcher.get_opcodes() if kind != "equal"]
    blocks = matcher.get_matching_blocks()
    kept = {block.a + at: new[block.b + at] for block in blocks for at in range(block.size)}
    lines = [unit.line for unit in old]
    spans = [tuple(bisect_left(lines, line) for line in place[1:3]) for place in places]
    # A solution that was removed, or moved, leaves its comment.
    edited = {*([] if exactly else SOLVED.findall(script))}
    for place, (begin, end) in zip(places, spans):
        around = [unit for i, j, units in edits if i <= end and j >= begin for unit in units]
        for at in range(begin + 1, end):
            if at not in kept or any(_encloses(unit, kept[at]) for unit in around):
                edited.add(place.name)
    for i, j, units in edits:
        near = [place for place, (begin, end) in zip(places, spans) if i <= end and j > begin]
        if exactly or not effects:
            does = any(not effects or effects.affected(unit.node) for unit in units)
            edited |= {place.name for place in near if does}
        else:
            edited |= effects.filled_todos([unit.node for unit in units if unit.node], near)
    return edited


@lru_cache(maxsize=64)
def _units(text: str, with_depth: bool) -> list[Unit]:
    units = [unit for unit in _lines(text) if isinstance(unit.key, tuple)]
    for node in _statements(parse(text)):
        header = type(node)(**vars(node) | {name: [] for name in BLOCKS if hasattr(node, name)})
        depth = " " * node.col_offset * with_depth
        units.append(Unit(node.lineno, depth + ast.dump(header), node))
    return sorted(units, key=lambda unit: unit.line)


def _lines(text: str) -> list[Unit]:
    """Return the lines that are neither empty nor comments, and the TODOs' comments."""
    units = []
    for number, line in enumerate(text.splitlines(), 1):
        if mark := MARK.match(line):
            units.append(Unit(number, (mark[1],)))
        elif line.strip() and not line.lstrip().startswith("#"):
            units.append(Unit(number, line.strip()))
    return units


def _statements(node: Any) -> Iterator[Any]:
    """Return all statements in a block, and in the blocks in it."""
    for inner in chain.from_iterable(getattr(node, name, ()) for name in BLOCKS):
        if isinstance(inner, ast.stmt):
            yield inner
        yield from _statements(inner)


def _encloses(outer: Unit, inner: Unit) -> bool:
    return bool(outer.node) and outer.line < inner.line <= outer.node.end_lineno


def compile_script(text: str) -> CodeType:
    """Compile a training script without what starts it, if no `if __name__ == …` guards this."""

    def starts(node: ast.stmt) -> bool:
        return any(_roots(call) & {"main", "recording", "recorder"} for call in _calls(node))

    tree = ast.parse(text, "train.py")
    kept = ast.FunctionDef | ast.ClassDef | ast.If
    tree.body = [node for node in tree.body if isinstance(node, kept) or not starts(node)]
    return compile(tree, "train.py", "exec")


@lru_cache(maxsize=64)
class Effects:
    """What the statements of a script could do to the training, with the solution `solved`."""

    def __init__(self, solved: str, script: str) -> None:
        imports, tree = _imports(solved), parse(solved)
        self._known, packages = set(_names(tree)), {*imports.values()}
        owners = [_roots(part) for part in ast.walk(tree) if isinstance(part, ast.Attribute)]
        self._modules = {name for names in owners for name in names if name in imports}
        # Other packages, such as logging, only observe.
        self._imports = {name for name, of in _imports(script).items() if of in packages}
        statements = _statements(parse(script))
        functions = {node.name for node in statements if isinstance(node, ast.FunctionDef)}
        self._known |= self._imports | functions

    def filled_todos(self, nodes: Sequence[Any], near: Sequence[Place]) -> set[str]:
        """Return which of the TODOs next to some statements these could fill."""
        loops = [node for node in nodes if isinstance(node, ast.For)]
        variables = {name for loop in loops for name in _roots(loop.target)}
        values = [node.iter if node in loops else node for node in nodes]
        kinds = ast.expr | ast.Assign
        sources = {name for x in values if isinstance(x, kinds) for name in _names(x)}
        filled = set()
        for node in nodes:
            if names := self.affected(node, variables):
                shared = [
                    ([len(x & self._wanted(place)) for x in (names, sources)], place)
                    for place in near
                ]
                candidates = [(counts, -place.order, place.name) for counts, place in shared]
                counts, _, name = max(candidates, default=([0], 0, ""))
                filled |= {name} if any(counts) else set()
        return filled

    def affected(self, node: Any, variables: Sequence[str] = ()) -> set[str]:
        """Return the names in a statement that could change the training, unlike print."""
        known, made = self._known.union(variables), []
        match node:
            case ast.Expr(value):
                calls = [value] if isinstance(value, ast.Call) else _calls(value)
                is_effective = any(_roots(call) & known for call in calls)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                targets = getattr(node, "targets", None) or [node.target]
                is_effective = any(_roots(target) & known for target in targets)
                made = [node.value] if node.value else []
            case ast.FunctionDef(name=name):
                return {name}
            case ast.With():
                is_effective, made = False, [item.context_expr for item in node.items]
            case _:
                is_effective = isinstance(node, ast.Return | ast.Delete | ast.Raise)
        if is_effective:
            return _names(node)
        calls = [call.func for value in made for call in _calls(value)]
        return {name for call in calls if _roots(call) & self._imports for name in _names(call)}

    def _wanted(self, place: Place) -> set[str]:
        """Return the names that only a TODO's solution has, and those that it assigns."""
        solution, before = (parse(dedent(code)) for code in (place.solution, place.before))
        targets = {
            part.id
            for part in ast.walk(solution)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        only = _names(solution) - _names(before)
        return (only | targets) - ANYWHERE - self._modules


def _calls(node: ast.AST) -> list[ast.Call]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


@lru_cache(maxsize=64)
def _names(node: ast.AST) -> set[str]:
    """Return the variables, attributes, functions and arguments that some code names."""
    parts = [*ast.walk(node)]
    return {
        name
        for part in parts
        for name in (getattr(part, field, None) for field in ("id", "attr", "name", "arg"))
        if isinstance(name, str)
    }


def _imports(text: str) -> dict[str, str]:
    """Return the names that a script imports, each with its package."""
    names = {}
    for node in _statements(parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = getattr(node, "module", None) or alias.name
                name = alias.asname or alias.name.partition(".")[0]
                names[name] = module.partition(".")[0]
    return names


def _roots(node: Any) -> set[str]:
    """Return the variables that a target or a function belongs to: x of `x.y[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Tuple | ast.List):
        return {name for part in node.elts for name in _roots(part)}
    return {node.id} if isinstance(node, ast.Name) else set()
