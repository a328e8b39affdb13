"""Numbers that are typed in the prose of notebooks, quizzes and pages, compared with their source.

A lab's `facts.toml` is about a notebook and its quiz, `docs/facts.toml` about other pages:

    [[fact]]
    text = "a phrase of the prose, with its number: 2.6 times as fast"
    expression = '''f"{ratio(run("nvidia-h100", "amp"), run("nvidia-h100", "device")):.1f}"'''
    file = "quiz"            # where the phrase is; without it, in the notebook

The expression gives a text, or a list of texts, that the phrase must contain in this order. What
several entries use can have a name, in a table at the top of the file:

    [names]
    times = "supercomputer.training_times()"
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import facts
import pytest

from course.checks import discovery

PROJECT = facts.PROJECT
FILES = [path / "facts.toml" for path in (*discovery.folders(), PROJECT / "docs")]
FILES = [path for path in FILES if path.exists()]


def prose_of(path: Path) -> str:
    """Return the text of a page, or of a notebook's markdown cells, in one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return plain(text)


def plain(text: str) -> str:
    """Return Markdown in one line, with the words of links but not their targets."""
    return re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(text.split()))


def source_of(facts_file: Path, file: str) -> Path:
    """Return the path of the page that an entry is about."""
    if facts_file.parent.name == "docs":
        return PROJECT / file
    if file == "notebook":
        return discovery.notebook_of(facts_file.parent.name)
    return facts_file.with_name("quiz.toml")


def find(value: str, text: str, begin: int = 0) -> re.Match[str] | None:
    """Find a value in a text, from `begin`, where no longer or negative number contains it."""
    # 1.5 is in "1.5 times" and in "1-1.5 times", but not in "11.5 times", "1.53 times" or "-1.5".
    pattern = rf"(?<![\d.,])(?<!(?<!\w)[-−]){re.escape(value)}(?![.,]?\d)"
    return re.compile(pattern).search(text, begin)


def problems(entry: dict[str, str], prose: str, names: dict[str, Any]) -> list[str]:
    """Return what is wrong with an entry about this prose."""
    text = plain(entry["text"])
    if not find(text, prose):
        return [f"not in the prose: {text!r}"]
    value = eval(entry["expression"], names)
    values = [value] if isinstance(value, str) else [*value]
    if not values or not all(values):
        return [f"the expression of {text!r} gives {value!r}: expected a text, or several"]
    end = 0
    for value in values:
        match = find(value, text, end)
        if not match:
            rest = text[end:]  # the values are in the order of the prose
            return [f"the value is {value!r}, but the prose says {rest!r}, in {text!r}"]
        end = match.end()
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_numbers_in_prose(path: Path) -> None:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    names = dict(vars(facts))
    package = getattr(facts, path.parent.parent.name, None)
    names["lab"] = getattr(package, path.parent.name, None)
    for name, expression in content.get("names", {}).items():
        names[name] = eval(expression, names)
    wrong = []
    for entry in content["fact"]:
        source = source_of(path, entry.get("file", "notebook"))
        wrong += problems(entry, prose_of(source), names)
    assert not wrong, "\n".join(wrong)
