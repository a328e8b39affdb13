"""The heart of DDP: gradients are averaged bucket by bucket while backward still computes."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import distributed

from course.checks.exercises import SOLUTION
from course.runs.run import PROJECT

IMPORTED = {"torch": torch, "distributed": distributed}  # in the script, under these names


def make_buckets(weights, limit):
    """Group weights into buckets, the last weight first; close one at `limit` bytes or more."""
    buckets = [[]]
    for weight in reversed(list(weights)):
        buckets[-1].append(weight)
        if sum(each.nbytes for each in buckets[-1]) >= limit:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def send(bucket):
    """Start the all-reduce of a bucket's gradients; return their tensor, and the handle."""
    gradients = torch.cat([weight.grad.flatten() for weight in bucket])
    return gradients, distributed.all_reduce(gradients, async_op=True)


def receive(bucket, gradients, handle):
    """Wait for an all-reduce, and copy its mean over the ranks into the weights' gradients."""
    ranks = distributed.get_world_size()
    handle.wait()
    gradients /= ranks
    for weight, part in zip(bucket, gradients.split([each.numel() for each in bucket])):
        weight.grad.copy_(part.view_as(weight))


def watch(bucket, under_way):
    """Send a bucket as soon as backward has computed its last gradient."""
    ready = []

    def hook(weight):
        ready.append(weight)
        if len(ready) == len(bucket):
            under_way.append((bucket, *send(bucket)))
            ready.clear()

    for weight in bucket:
        weight.register_post_accumulate_grad_hook(hook)


def average_gradients(weights, limit):
    """Average gradients during backward; return `wait`, to call before the optimizer."""
    under_way = []
    for bucket in make_buckets(weights, limit):
        watch(bucket, under_way)

    def wait():
        while under_way:
            receive(*under_way.pop(0))

    return wait


def script_lines(function: Callable) -> dict[str, str]:
    """Return the lines that let solutions/train.py average gradients by a function, not by DDP.

    Args:
        function: written like `average_gradients`. The functions, classes, imports and values that
            it uses are added to the script, too.

    Raises:
        ValueError: it uses a value that a script cannot define, or a name that the script has.
    """
    lines: set[str] = set()
    sources: dict[Callable, str] = {}
    _add(function, function, lines, sources)
    added = "\n\n\n".join(["\n".join(sorted(lines)), *sources.values()])
    return {
        "from torch import distributed, nn": added,
        "criterion = nn.CrossEntropyLoss()": f"""
            model.require_backward_grad_sync = False  # DDP sends no gradients
            wait = {function.__name__}(net.parameters(), cfg.bucket_mb * 2**20)""",
        "scaler.scale(loss).backward()": "wait()",
    }


def _add(own: Callable, function: Callable, lines: set[str], sources: dict[Callable, str]) -> None:
    """Add the source of a function or class, after what it uses of the notebook of `function`."""
    if own.__name__ in _script_names():
        raise ValueError(f"{SOLUTION} has a different `{own.__name__}`: rename yours")
    sources[own] = source = _source(own, function)
    for name in _names(compile(source, "<source>", "exec", dont_inherit=True)):
        if name not in function.__globals__ or name == "__name__":  # a class body reads it
            continue
        value = function.__globals__[name]
        is_own = getattr(value, "__module__", None) == function.__module__
        is_own = is_own and isinstance(value, FunctionType | type)
        if is_own and value.__name__ in (name, "<lambda>"):
            if value not in sources:
                _add(value, function, lines, sources)
        elif IMPORTED.get(name) is not value:
            lines.add(_line(name, value))
    sources[own] = sources.pop(own)  # what it uses comes first


def _source(own: Callable, function: Callable) -> str:
    """Return the source of a function or class. `inspect` finds no class of a notebook."""
    with suppress(OSError, TypeError):
        return inspect.getsource(own).strip()
    methods = [each for each in vars(own).values() if isinstance(each, FunctionType)]
    files = [each.__code__.co_filename for each in (*methods, function)]
    for file in (*files, *reversed(linecache.cache)):  # the latest cell first
        lines = linecache.getlines(file)
        with suppress(SyntaxError):
            for node in ast.parse("".join(lines)).body:
                if isinstance(node, ast.ClassDef) and node.name == own.__name__:
                    first = min(each.lineno for each in (node, *node.decorator_list))
                    return "".join(lines[first - 1 : node.end_lineno]).strip()
    raise ValueError(f"the source of `{own.__name__}` is missing: run the cell that defines it")


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that code uses, and the code inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _line(name: str, value: Any) -> str:
    """Return the line that defines a name: an import, or a value.

    Raises:
        ValueError: no line can define it, or the script has a different value of this name.
    """
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    public = getattr(value, "__name__", "")
    for module in (getattr(value, "__module__", None), "torch"):  # torch.cat has no module
        if module != "__main__" and getattr(sys.modules.get(module), public, sys) is value:
            return f"from {module} import {public} as {name}"
    if name in _script_names():
        raise ValueError(f"{SOLUTION} has a different `{name}`: rename yours")
    with suppress(Exception):  # a value's repr may be anything
        if eval(repr(value), {"torch": torch}) == value:
            return f"{name} = {value!r}"
    raise ValueError(
        f"`{name}` is a {type(value).__name__}, which the script cannot define. Create it inside a "
        "function; outside, use functions, classes, imported names, numbers, strings and tuples"
    )


def _script_names() -> set[str]:
    """Return the names that the script defines outside of its functions."""
    tree = ast.parse((PROJECT / SOLUTION).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {"main", *(each.asname or each.name for node in imports for each in node.names)}
