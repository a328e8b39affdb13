"""Keep the places of labs up to date: headings, links to notebooks, and which lab is next.

A notebook's name gives the lab's place. `python -m tools.pages --labs` writes what follows from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from course.checks import discovery
from course.checks.lab import Lab
from course.runs.run import PROJECT

LINK = re.compile(r"\[([^\[\]]*)\]\(((?:[\w./-]*/)?)(\w+)\.ipynb((?:#[^)\s]*)?)\)")
HEADING = re.compile(r"^# Lab.*$", re.MULTILINE)
NUMBER = re.compile(r"\b\d\.\d\b")
NEXT = re.compile(r"(## Next\n\n(?:.|\n)*?)\[Lab \d\.\d: [^\[\]]*\]\(\w+\.ipynb\)")
# Numbers outside of links would not follow a lab that moves.
TYPED = re.compile(r"\b[Ll]abs? \d\.\d\b(?![^\[\]]*\]\([^)]*\.ipynb)")


def pages() -> list[Path]:
    """Return the pages whose prose may name labs."""
    folders = (".", "docs", "site", "research", "idr_pytools")
    found = [path for folder in folders for path in (PROJECT / folder).glob("*.md")]
    return [path for path in sorted(found) if path.name != "CHANGELOG.md"]


def link(name: str, folder: str = "../notebooks") -> str:
    """Return a Markdown link to a lab, whose text is its number, or an elective's title."""
    (lab,) = [lab for lab in discovery.labs() if lab.name == name]
    return f"[{lab.label}]({folder}/{lab.notebook}.ipynb)"


def heading(lab: Lab) -> str:
    """Return the first line of a lab's notebook."""
    return f"# Lab {lab.number}: {lab.title}" if lab.number else f"# Lab: {lab.title}"


def update_next(text: str, lab: Lab | None) -> str:
    """Return Markdown whose section "Next" links to this lab, if it names a lab by its number."""
    if not lab or not lab.number:
        return text
    words = heading(lab).removeprefix("# ")
    return NEXT.sub(lambda match: f"{match[1]}[{words}]({lab.notebook}.ipynb)", text)


def update(text: str) -> str:
    """Return Markdown whose links to labs have the notebooks' current names and numbers."""
    labs = {lab.name: lab for lab in discovery.labs()}

    def current(match: re.Match[str]) -> str:
        words, folder, notebook, anchor = match.groups()
        if (lab := labs.get(discovery.topic(notebook))) is None:
            return match[0]
        if re.fullmatch(r"Lab \d\.\d: .*", words):
            words = heading(lab).removeprefix("# ")
        return f"[{NUMBER.sub(lab.label, words, count=1)}]({folder}{lab.notebook}.ipynb{anchor})"

    return LINK.sub(current, text)


def write(*, check: bool = False) -> list[str]:
    """Update headings and links in all notebooks and pages, unless `check`; return stale files."""
    labs = discovery.labs()
    by_notebook = {lab.notebook: lab for lab in labs}
    successors = dict(zip(by_notebook, labs[1:]))
    stale = []
    for path in [*sorted(discovery.NOTEBOOKS.glob("*.ipynb")), *pages()]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            new = update(text)
        else:
            first = heading(by_notebook[path.stem]) if path.stem in by_notebook else None
            successor = successors.get(path.stem)

            def change(source: str, title: str | None = first, lab: Lab | None = successor) -> str:
                return update_next(_cell(source, title), lab)

            new = _map_markdown(text, change)
        if new != text:
            stale.append(str(path.relative_to(PROJECT)))
            if not check:
                path.write_text(new, encoding="utf-8")
    return stale


def typed() -> Iterator[str]:
    """Yield each place where prose names a lab by a number outside of a link."""
    for path in [*sorted(discovery.NOTEBOOKS.glob("*.ipynb")), *pages()]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n".join(HEADING.sub("", "".join(cell["source"])) for cell in cells)
        yield from (f"{path.name}: {match[0]}" for match in TYPED.finditer(text))


def _cell(source: str, title: str | None) -> str:
    return update(HEADING.sub(lambda _: title, source, count=1) if title else source)


def _map_markdown(notebook: str, change: Callable[[str], str]) -> str:
    """Return a notebook's file with a function applied to each Markdown cell."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = change("".join(cell["source"])).splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
