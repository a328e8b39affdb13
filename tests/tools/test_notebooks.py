"""Real notebooks through real papermill, and the report on them."""

import html
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest
from job_helpers import (
    SCRIPTS,
    eventually,
    expect_no_process,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    runs_root_at,
    start_python,
)

from course.jobs import sites
from course.runs import run as runs
from tools import notebooks
from tools.notebooks import Outcome

LIMIT_MIN = 0.5  # per cell: enough for a small run on a busy machine
LAUNCH = """from course import launch, rung, wait
run = launch({script!r}, rung("baseline", quick=True), site=site)
run"""
RAISES = """# a comment first
if 1 < 2:
    raise ValueError("<b>seven</b> & \\x1b[31mred")"""
HANGS = """import time
try:
    time.sleep(600)
finally:
    open("cleaned_up", "w").close()"""
COMMAND = """
import sys
from pathlib import Path

from tools import notebooks
from course.__main__ import main

notebooks.FOLDER = Path(sys.argv.pop(1))
main()
"""


def write_notebook(folder: Path, name: str, *cells: str, parameters: str = "") -> Path:
    """Write a notebook with the common parameters, and these cells."""
    first = nbformat.v4.new_code_cell(
        parameters or 'quick = True\nscript = ""\nsite = "local"', metadata={"tags": ["parameters"]}
    )
    rest = [nbformat.v4.new_code_cell(cell, id=f"cell-{n}") for n, cell in enumerate(cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(cells=[first, *rest], metadata={"kernelspec": kernel})
    nbformat.write(book, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write notebooks: one passes, one raises, one hangs, and one more passes."""
    folder = tmp_path_factory.mktemp("notebooks")
    script = str(SCRIPTS / "ok_light.py")
    write_notebook(folder, "a_passes", LAUNCH.format(script=script), "run.wait()")
    write_notebook(folder, "b_raises", RAISES, "print('not reached')")
    write_notebook(folder, "c_hangs", LAUNCH.format(script=str(SCRIPTS / "holds.py")), HANGS)
    write_notebook(folder, "d_passes", "print(quick, script, site)")
    return folder


@pytest.fixture(scope="module")
def executed(
    folder: Path, own_turns: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Execute all four once."""
    place = tmp_path_factory.mktemp("executed") / "runs"
    with runs_root_at(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebooks, "FOLDER", folder)
        return by_name(
            notebooks.execute_all(
                notebooks.matching(), quick=True, script="s.py", cell_minutes=LIMIT_MIN
            )
        )


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome.notebook: outcome for outcome in outcomes}


@pytest.mark.slow
class TestExecution:
    def test_a_failure_does_not_stop_the_others(self, executed: dict[str, Outcome]) -> None:
        states = {name: outcome.status for name, outcome in executed.items()}
        passed, failed = ("a_passes", "d_passes"), ("b_raises", "c_hangs")
        assert states == dict.fromkeys(passed, "ok") | dict.fromkeys(failed, "failed")
        assert all(outcome.seconds > 0 for outcome in executed.values())

    def test_a_failure_has_its_cell_and_error(self, executed: dict[str, Outcome]) -> None:
        failed = executed["b_raises"]
        assert failed.error.startswith("ValueError: <b>seven</b>")
        assert (failed.cell.cell_id, failed.cell.line) == ("cell-0", "if 1 < 2:")
        assert re.search(rf"In.\[{failed.cell.number}\]:", failed.page.read_text())

    def test_a_cell_that_takes_too_long_ends_with_its_runs(
        self, executed: dict[str, Outcome], folder: Path
    ) -> None:
        hung = executed["c_hangs"]
        assert f"longer than {LIMIT_MIN:g} minutes" in hung.error
        assert hung.cell.line == "import time" and (folder / "cleaned_up").exists()
        assert LIMIT_MIN * 60 <= hung.seconds < 120
        left = r"Cancelled, because the notebook left them behind: (\S+) \("
        (name,) = re.findall(left, hung.error)
        root = hung.page.parent.parent.parent
        assert runs.Run(root / name).status == "cancelled"

    def test_parameters(self, executed: dict[str, Outcome]) -> None:
        assert "True s.py local" in executed["d_passes"].page.read_text()

    def test_the_report_has_every_notebook_and_escapes_their_text(
        self, executed: dict[str, Outcome]
    ) -> None:
        page = executed["a_passes"].page.with_name("report.html").read_text()
        for name, outcome in executed.items():
            assert re.search(rf'href="{name}.html">{name}</a></td>\s*<td>{outcome.status}<', page)
        assert runs.git_sha()[:12] in page
        assert "<b>seven" not in page and html.escape("<b>seven</b> & red") in page
        assert "if 1 &lt; 2:" in page


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a notebook to a new folder of notebooks."""
    home = tmp_path / "books"
    home.mkdir()
    monkeypatch.setattr(notebooks, "FOLDER", home)
    return lambda name, *cells, **options: write_notebook(home, name, *cells, **options)


@pytest.mark.slow
def test_dead_kernels_and_damaged_notebooks_are_failures(
    runs_root: Path, write: Callable[..., Path]
) -> None:
    dies = write("dies", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    lacks = write("lacks", "1", parameters="other = 1")
    cut = dies.with_name("cut.ipynb")
    cut.write_text('{"cells": [')
    outcomes = by_name(notebooks.execute_all([dies, lacks, cut]))
    assert [outcome.status for outcome in outcomes.values()] == ["failed"] * 3
    assert "DeadKernelError" in outcomes["dies"].error
    assert outcomes["dies"].cell.cell_id == "cell-0"
    assert "no parameter ['quick', 'script', 'site']" in outcomes["lacks"].error
    assert outcomes["cut"].error and not outcomes["cut"].cell


@pytest.mark.slow
def test_kernels_are_encrypted(runs_root: Path, write: Callable[..., Path]) -> None:
    """Other users of this machine can listen to TCP."""
    code = "from ipykernel.kernelapp import IPKernelApp\napp = IPKernelApp.instance()\n"
    book = write("listens", f"{code}print(app.transport, bool(app.curve_secretkey))")
    (outcome,) = notebooks.execute_all([book])
    cells = nbformat.read(outcome.executed, 4).cells
    assert cells[-1].outputs[0].text == "tcp True\n"


def start_command(tmp_path: Path, folder: Path, *options: str) -> subprocess.Popen:
    """Start `course notebooks` on a different folder of notebooks, in its own process group."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return start_python(str(script), folder, "notebooks", "[cd]*", "--quick", *options, **pipes)


def wait_for_hang(runs_root: Path) -> Path:
    """Wait until the hanging notebook's run computes and its last cell sleeps."""
    executed = runs_root / "notebooks" / "local" / "c_hangs.ipynb"
    eventually(lambda: any(run.started for run in runs.all_runs()), "its run computes")
    eventually(
        lambda: (
            executed.exists()
            and (cell := notebooks.last_started_cell(executed))
            and cell.line == "import time"
        ),
        "its last cell sleeps",
    )
    return executed.with_name("report.html")


@pytest.mark.slow
def test_ctrl_c_leaves_the_report_and_nothing_else(
    runs_root: Path, folder: Path, tmp_path: Path
) -> None:
    command = start_command(tmp_path, folder, "--json")
    report = wait_for_hang(runs_root)
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert f"{runs.PROJECT}/course/" not in err and "Aborted" not in err, err  # no traceback
    result = json.loads(out)
    assert [outcome["status"] for outcome in result["outcomes"]] == ["interrupted", "not run"]
    assert result["report"] == str(report)
    assert "<td>interrupted<" in (page := report.read_text()) and "<td>not run<" in page
    assert [run.status for run in runs.all_runs()] == ["cancelled"]
    expect_no_process(runs_root, timeout_s=20)


@pytest.mark.slow
def test_a_failure_ends_the_command_with_1(runs_root: Path, folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    words = [sys.executable, str(script), str(folder), "notebooks", "b*"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and "ValueError" in result.stderr
    report = runs_root / "notebooks" / "local" / "report.html"
    assert f"report: {report}" in result.stdout and report.exists()


SITES = (runs.PROJECT / "docs" / "sites.md").read_text()


def test_every_setting_of_a_site_is_explained() -> None:
    explained = {
        name
        for row in re.findall(r"^\|([^|]*)\|", SITES, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert explained >= {field.name for field in fields(sites.Site)} - {"name"}


def test_the_example_of_a_site_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"```toml\n(.*?)```", SITES, re.S)
    (tmp_path / "sites.toml").write_text("\n".join(examples))
    monkeypatch.setenv("COURSE_SITES", str(tmp_path / "sites.toml"))
    assert sites.get("my-cluster").shape(8) == (2, 4) and sites.get("local").shared
