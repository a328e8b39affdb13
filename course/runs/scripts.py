"""What the text of a training script says, without running it."""

from __future__ import annotations

import ast
from functools import lru_cache


def is_same_code(text: str, other: str) -> bool:
    """Return whether two scripts differ in comments, blank lines and layout at most."""
    return text == other or ast.dump(_tree(text)) == ast.dump(_tree(other))


def calls(text: str, name: str) -> bool:
    """Return whether a script calls a function of this name, such as recording()."""
    called = (node.func for node in ast.walk(_tree(text)) if isinstance(node, ast.Call))
    return any(name in (getattr(f, "id", ""), getattr(f, "attr", "")) for f in called)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)
