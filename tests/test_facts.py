"""Numbers that are typed in the prose of notebooks, quizzes and pages, compared with their source.

`labs/NOTEBOOK/facts.toml` is about a notebook and its quiz, `docs/facts.toml` about other pages:

    [[fact]]
    text = "a phrase of the prose, with its number: 2.6 times as fast"
    expression = '''f"{ratio(run("nvidia-h100", "amp"), run("nvidia-h100", "device")):.1f}"'''
    file = "quiz"            # where the phrase is; without it, in the notebook

The expression gives a text, or a list of texts, that the phrase must contain. What several entries
use can have a name, in a table at the top of the file:

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

PROJECT = facts.PROJECT
FILES = [*sorted(PROJECT.glob("labs/*/facts.toml")), *PROJECT.glob("docs/facts.toml")]


def prose_of(path: Path) -> str:
    """Return the text of a page, or of a notebook's markdown cells, in one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return " ".join(text.split())


def source_of(facts_file: Path, file: str) -> Path:
    """Return the path of the page that an entry is about."""
    if facts_file.parent.name == "docs":
        return PROJECT / file
    notebook = PROJECT / "notebooks" / f"{facts_file.parent.name}.ipynb"
    if file == "notebook":
        return notebook
    (quiz,) = re.findall(r'quiz\(\\"(\w+)\\"', notebook.read_text(encoding="utf-8"))
    return PROJECT / "course" / "days" / "quizzes" / f"{quiz}.toml"


def problems(entry: dict[str, str], prose: str, names: dict[str, Any]) -> list[str]:
    """Return what is wrong with an entry about this prose."""
    text = entry["text"]
    if text not in prose:
        return [f"not in the prose: {text!r}"]
    value = eval(entry["expression"], names)
    values = [value] if isinstance(value, str) else value
    # 1.5 is in "1.5 times", but neither in "11.5 times" nor in "1.53 times".
    missing = [
        each for each in values if not re.search(rf"(?<![\d.,]){re.escape(each)}(?![.,]?\d)", text)
    ]
    return [f"the value is {each!r}, but the prose says {text!r}" for each in missing]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_numbers_in_prose(path: Path) -> None:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    names = dict(vars(facts))
    for name, expression in content.get("names", {}).items():
        names[name] = eval(expression, names)
    found = []
    for entry in content["fact"]:
        source = source_of(path, entry.get("file", "notebook"))
        found += problems(entry, prose_of(source), names)
    assert not found, "\n".join(found)


def test_a_wrong_entry_fails() -> None:
    entry = {"text": "it is 2.6 times as fast", "expression": "f'{13 / 5:.1f}'"}
    assert problems(entry, "Here it is 2.6 times as fast as before.", {}) == []
    assert "not in the prose" in problems(entry, "Here it is 2.7 times as fast.", {})[0]
    assert "the value is '2'" in problems(entry | {"expression": "'2'"}, entry["text"], {})[0]
