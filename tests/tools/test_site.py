"""The site: its table of contents, and the outputs of executed notebooks."""

import re

import nbformat
import pytest

from course.runs.run import PROJECT
from tools.outputs import NO_OUTPUTS, STOPPED, newest_execution, with_outputs

INDEX = PROJECT / "site" / "index.md"


def listed() -> list[str]:
    """Return the pages that the table of contents lists, each pattern expanded."""
    trees = re.findall(r"^```{toctree}\n(.*?)```", INDEX.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if not line.startswith(":")]
    entries = [re.sub(r".*<(.+)>", r"\1", line) for line in lines if line]
    return [
        str(path.resolve().relative_to(PROJECT))
        for entry in entries
        for suffix in (".md", ".ipynb")
        for path in INDEX.parent.glob(f"{entry}{suffix}")
    ]


@pytest.mark.parametrize("pattern", ["notebooks/*.ipynb", "docs/*.md", "*.md"])
def test_site_lists_each_page_once(pattern: str) -> None:
    pages = [str(path.relative_to(PROJECT)) for path in PROJECT.glob(pattern)]
    assert [listed().count(page) for page in pages] == [1] * len(pages)


def notebook(*sources: str, outputs: bool = False) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_markdown_cell("# Lab", id="title")]
    for number, source in enumerate(sources):
        shown = [nbformat.v4.new_output("stream", text=f"1/2\r{source}\n")] if outputs else []
        cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{number}", outputs=shown))
    run = {"parameters": {"quick": True}, "start_time": "2026-11-27T21", "exception": None}
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"papermill": run | {"end_time": "2026-11-27T22"}}
    )


def test_a_notebook_has_the_outputs_of_its_unchanged_cells() -> None:
    executed = notebook("injected", "b", outputs=True)
    title, note, changed, same = with_outputs(notebook("a", "b"), executed).cells
    assert title.source == "# Lab"
    assert "2026-11-27, executed with `quick=True`" in note.source and STOPPED not in note.source
    assert changed.outputs == []
    assert [output.text for output in same.outputs] == ["b\n"]  # the last state of its line


def test_a_page_says_that_it_has_no_outputs_or_not_all() -> None:
    assert NO_OUTPUTS in with_outputs(notebook("a"), None).cells[1].source
    executed = notebook("a", outputs=True)
    executed.metadata.papermill.end_time = None
    assert STOPPED in with_outputs(notebook("a"), executed).cells[1].source


def test_newest_execution_is_the_folder_written_last(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path))
    assert newest_execution() is None
    for name in ("older", "newer"):
        folder = tmp_path / "notebooks" / name
        folder.mkdir(parents=True)
        (folder / "lab.ipynb").touch()
    assert newest_execution() == folder


@pytest.mark.parametrize(
    "term",
    ["MFU", "attention", "SDPA", "DeviceMesh", "DTensor", "cuDNN", "NVLink", "optimizer"]
    + ["scheduler"],
)
def test_a_term_of_the_glossary_has_a_link_that_shows_it(term: str) -> None:
    """The site shows the definition over each link to it."""
    assert f"\n### {term}\n" in (PROJECT / "docs/glossary.md").read_text()
    pages = (PROJECT / "notebooks").glob("*.ipynb")
    assert any(f"glossary.md#{term.lower()})" in page.read_text() for page in pages)
