"""Settings of the site: Sphinx reads the repository's pages and notebooks where they are."""

import json
import re
import sys
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.errors import ConfigError
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "Make training fast"
html_title = project
root_doc = "site/index"
pages = ("docs", "notebooks", "site", "fast_resnet")
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb", "site/*.md", "fast_resnet/README.md"]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in pages]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
smartquotes = False  # they would turn the two dashes of an option into one

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["index.html"]  # opens site/index.html
html_show_copyright = html_show_sourcelink = html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = []  # without mathematics, so that $HOME stays as it is
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # a widget's static page is shown instead; it needs no script from the web
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

autodoc_member_order = "bysource"  # as in __all__
default_role = "code"  # docstrings write `code`

NO_OUTPUTS = """```{note}
This page has no outputs: the notebook was not executed when the site was built.
```"""
OUTPUTS = """```{{note}}
The outputs are from {day}, with {parameters}. Yours will differ.
```"""


def newest_rehearsal() -> Path | None:
    """Return the folder to which `course notebooks` last wrote, if there is one."""
    from course.runs.run import runs_root

    executed = runs_root().glob("notebooks/*/*.ipynb")
    newest = max(executed, key=lambda path: path.stat().st_mtime, default=None)
    return newest and newest.parent


def find_executed_notebooks(app, config) -> None:
    """Set the folder of executed notebooks. Raises ConfigError if it does not exist."""
    folder = config.executed_notebooks
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"executed_notebooks={folder!r}: expected a folder of executed notebooks")
    config.executed_notebooks = str(folder or newest_rehearsal() or "")


def prepare_source(app, docname: str, source: list[str]) -> None:
    """Add outputs to a notebook; turn a page's HTML anchors into targets that Sphinx knows."""
    if docname.startswith("notebooks/"):
        executed = Path(app.config.executed_notebooks, f"{Path(docname).name}.ipynb")
        source[0] = json.dumps(with_outputs(json.loads(source[0]), executed))
    else:
        source[0] = re.sub(r'^<a id="(.+?)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


def with_outputs(notebook: dict, path: Path) -> dict:
    """Return a notebook with a note after its first cell, and the outputs of unchanged cells.

    Cells that changed since the execution stay without outputs.
    """
    note = NO_OUTPUTS
    if path.is_file():
        executed = json.loads(path.read_text(encoding="utf-8"))
        run = executed["metadata"]["papermill"]
        parameters = ", ".join(f"`{name}={value!r}`" for name, value in run["parameters"].items())
        note = OUTPUTS.format(day=run["start_time"][:10], parameters=parameters)
        cells = {cell["id"]: cell for cell in executed["cells"]}
        for cell in notebook["cells"]:
            same = cells.get(cell["id"], {})
            if cell["cell_type"] == "code" and cell["source"] == same.get("source"):
                cell["outputs"] = same["outputs"]
    cell = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": note}
    return notebook | {"cells": [notebook["cells"][0], cell, *notebook["cells"][1:]]}


@cache
def definitions(env) -> dict[str, str]:
    """Return the glossary's definitions by the ids of their terms."""
    sections = env.get_doctree("docs/glossary").findall(nodes.section)
    first = ((section, next(section.findall(nodes.paragraph), None)) for section in sections)
    return {name: text.astext() for section, text in first if text for name in section["ids"]}


class GlossaryTooltips(SphinxPostTransform):
    """Give each link to a term of the glossary the definition as its title."""

    default_priority = 20  # after links are resolved

    def run(self, **options) -> None:
        for link in self.document.findall(nodes.reference):
            page, _, term = link.get("refuri", "").partition("#")
            if page.endswith("glossary.html") and term in definitions(self.env):
                link["reftitle"] = definitions(self.env)[term]


def setup(app) -> dict:
    app.add_config_value("executed_notebooks", "", "env")
    app.connect("config-inited", find_executed_notebooks)
    app.connect("source-read", prepare_source)
    app.add_post_transform(GlossaryTooltips)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
