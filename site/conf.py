"""Settings of the site: Sphinx reads the repository's pages and notebooks where they are."""

import re
import sys
from functools import cache
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.errors import ConfigError
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.outputs import newest_execution, with_outputs  # noqa: E402

project = "Make training fast"
html_title = project
root_doc = "site/index"
PAGES = ("docs", "notebooks", "site", "fast_resnet", "trainspeed", "slurm_box", "idr_pytools")
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb", "site/*.md", "*/README.md"]
exclude_patterns = [folder.name for folder in ROOT.glob("*/") if folder.name not in PAGES]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
suppress_warnings = ["myst.header"]  # the glossary's terms are headings of level 3
smartquotes = False  # they would turn the two dashes of an option into one

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
html_extra_path = ["index.html"]  # opens site/index.html
html_show_copyright = html_show_sourcelink = html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = []  # without mathematics, so that $HOME stays as it is
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # a widget's static page is shown instead; it needs no script from the web
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

autodoc_member_order = "bysource"  # as in __all__
autodoc_typehints = "description"  # not in signatures, which would be long
autodoc_typehints_description_target = "documented"
default_role = "code"  # docstrings write `code`


def find_executed_notebooks(app, config) -> None:
    """Set the folder of executed notebooks. Raises ConfigError if it does not exist."""
    folder = config.executed_notebooks
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"executed_notebooks={folder!r}: expected a folder of executed notebooks")
    config.executed_notebooks = str(folder or newest_execution() or "")


def prepare_source(app, docname: str, source: list[str]) -> None:
    """Add outputs to a notebook; turn a page's HTML anchors into targets that Sphinx knows."""
    if docname.startswith("notebooks/"):
        path = Path(app.config.executed_notebooks, f"{Path(docname).name}.ipynb")
        executed = nbformat.read(path, as_version=4) if path.is_file() else None
        notebook = with_outputs(nbformat.reads(source[0], as_version=4), executed)
        source[0] = nbformat.writes(notebook)
    else:
        source[0] = re.sub(r'^<a id="(.+?)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


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
