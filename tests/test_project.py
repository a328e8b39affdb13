"""The project's own rules: dependencies agree, notebooks are clean, links resolve."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from test_import_order import DOORS

import course
from course.checks import discovery
from course.config import COMPILED, LADDER
from course.runs.run import PROJECT

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))


def test_each_question_has_its_own_key() -> None:
    """A prediction under a used key is refused, or answers a different question."""
    keys = []
    for path in NOTEBOOKS:
        code = "\n".join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code")
        predicted = {*re.findall(r'\bpredict\(\s*"([^"]+)"', code)}
        assert path.stem.startswith("day") or not predicted & {*LADDER, *COMPILED}, path.stem
        keys += predicted
    assert len(keys) == len({*keys}), sorted(key for key in keys if keys.count(key) > 1)


def pyproject() -> dict:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


def wanted() -> list[Requirement]:
    project = pyproject()
    texts = project["dependencies"] + extras(project)
    return [Requirement(text) for text in texts]


def extras(project: dict) -> list[str]:
    """Return the optional dependencies that `make setup` installs."""
    names = ("test", "tracking", "parquet", "electives")
    return [text for name in names for text in project["optional-dependencies"][name]]


def locked() -> dict[str, list[Requirement]]:
    requirements: dict[str, list[Requirement]] = {}
    for line in (PROJECT / "requirements.lock").read_text().splitlines():
        requirement = Requirement(line)
        requirements.setdefault(requirement.name, []).append(requirement)
    return requirements


@pytest.mark.parametrize("need", wanted(), ids=lambda need: need.name)
def test_lock_holds_an_exact_version_that_fits(need: Requirement) -> None:
    for exact in locked()[need.name]:
        (pin,) = exact.specifier
        assert pin.operator == "=="
        assert need.specifier.contains(pin.version)


@pytest.mark.parametrize("name", ["requirements.lock", "environment.yml", "pyproject.toml"])
def test_no_address_of_a_registry_is_recorded(name: str) -> None:
    assert not re.search(r"https?://|index-url|find-links|file:", (PROJECT / name).read_text())


def test_conda_environment_is_the_same_set() -> None:
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text())
    project = pyproject()
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    listed = project["dependencies"] + extras(project)
    assert sorted(pip) == sorted([*listed, "--editable ."])
    assert f"python{project['requires-python']}" in environment["dependencies"]


def test_files_that_containers_copy_exist_and_are_enough() -> None:
    folder = PROJECT / "containers"
    docker, apptainer = ((folder / name).read_text() for name in ("Dockerfile", "apptainer.def"))
    (base,) = re.findall(r"^FROM (.+)$", docker, re.MULTILINE)
    assert base in re.findall(r"^From: (.+)$", apptainer, re.MULTILINE)
    copied = re.search(r"^COPY (.+) /opt/$", docker, re.MULTILINE)[1].split()
    section = apptainer.partition("%files")[2].partition("%post")[0]
    files = re.findall(r"^    (\S+) /", section, re.MULTILINE)
    assert all((PROJECT / name).exists() for name in copied + files)
    # An editable installation needs its packages, and learners the notebooks and what these read.
    packages = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = packages["packages"]["find"]["include"]
    needed = [pattern.removesuffix("*") for pattern in patterns]
    assert {*needed, "notebooks", "exercises", "solutions", "recordings"} <= {*files}
    for script in re.findall(r"sh /(?:opt|course)/(?:containers/)?(\w+\.sh)", docker + apptainer):
        assert subprocess.run(["sh", "-n", folder / script]).returncode == 0


def code_cells(path: Path) -> list[str]:
    """Return the Python of a notebook's cells: a line that begins with ! is a command."""
    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return [re.sub(r"(?m)^!.*$", "...", source) for source in sources]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_valid_and_holds_no_output(self, path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert not cell.outputs
                assert cell.execution_count is None

    def test_has_one_parameters_cell_with_the_common_parameters(self, path: Path) -> None:
        cells = nbformat.read(path, as_version=4).cells
        (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
        values = [node for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
        names = {node.targets[0].id for node in values}
        assert names >= {"quick", "script", "site"}

    def test_code_cells_are_short(self, path: Path) -> None:
        """Imports are not counted: each says which door has the names."""
        for source in code_cells(path):
            lines = [li for li in source.splitlines() if not re.match(r"(from|import) |$", li)]
            assert len(lines) <= 10, source

    def test_imports_public_names(self, path: Path) -> None:
        """Allow only what the course's doors offer, and labs."""
        for source in code_cells(path):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("course"):
                    assert node.module in DOORS, ast.unparse(node)
                    known = {*dir(import_module(node.module))}
                    assert {alias.name for alias in node.names} <= known, ast.unparse(node)
                if isinstance(node, ast.ImportFrom) and node.module.startswith(discovery.PACKAGES):
                    assert node.module in discovery.PACKAGES, ast.unparse(node)
                assert not isinstance(node, ast.Import) or all(
                    not alias.name.startswith(("course", *discovery.PACKAGES))
                    for alias in node.names
                )

    def test_names_no_account_path_or_batch_directive(self, path: Path) -> None:
        text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        assert not re.search(r"#SBATCH|account\s*=|@(v100|a100|h100)\b", text)
        assert not re.search(r"(?<![\w.)])(/home|/work|/tmp|/root|/gpfs|/scratch|~/|\$WORK)", text)

    def test_links_resolve(self, path: Path) -> None:
        text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        assert_links_resolve(text, path.parent)


def assert_links_resolve(text: str, folder: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "#")):
            continue
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), target
        if anchor and path.endswith(".md"):
            assert anchor in anchors((folder / path).read_text()), target


def anchors(page: str) -> set[str]:
    """Return a page's link targets: ids, and headings that GitHub and JupyterLab name alike.

    GitHub converts to lower case and drops punctuation; JupyterLab keeps both.
    """
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-"): heading.replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }
    alike = {name for name, other in headings.items() if name == other}
    return alike | set(re.findall(r'<a id="([^"]+)"></a>', page))


PAGES = sorted(
    path for folder in (".", "docs", "idr_pytools") for path in (PROJECT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_links_of_pages_resolve(page: Path) -> None:
    assert_links_resolve(page.read_text(), page.parent)


def test_files_that_name_the_version_agree() -> None:
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    newest = re.search(
        r"^## \[(.+)\] - (.+)$", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert citation["version"] == newest[1] == course.__version__
    assert citation["date-released"] == newest[2]


MFU_OF_A_CPU = """
from types import SimpleNamespace as Namespace
from course import report
from course.analysis.mfu import mfu
assert mfu(Namespace(record=Namespace(images_per_s=1.0, device="cpu"))) is None
"""


@pytest.mark.parametrize(
    "arguments", [["-c", "import course"], ["-m", "course", "--help"], ["-c", MFU_OF_A_CPU]]
)
def test_starts_without_torch(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True
    )
    imported = {
        line.rsplit("|", 1)[1].strip() for line in result.stderr.splitlines() if "|" in line
    }
    assert "course" in imported
    assert "torch" not in imported
