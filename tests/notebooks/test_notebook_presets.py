"""What a class presets reaches every job of a notebook, and every command."""

import ast
import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course import launch, predict
from course.__main__ import app
from course.jobs import preset
from course.runs import PROJECT

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
OURS = ("course", "electives", "labs", "race")


def statements(notebook: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield each code cell's id and syntax tree, without lines that begin with % or !."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        lines = [line for line in cell["source"] if not line.lstrip().startswith(("%", "!"))]
        if cell["cell_type"] == "code":
            yield cell["id"], ast.parse("".join(lines))


def imported(notebook: Path) -> dict[str, object]:
    """Return the modules and functions of the project that a notebook imports, by their names."""
    names = {}
    for node in [node for _, tree in statements(notebook) for node in ast.walk(tree)]:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
            names |= {x.asname or x.name: member(node.module, x.name) for x in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] in OURS]
            names |= {alias.asname or alias.name: import_module(alias.name) for alias in ours}
    return names


def member(module: str, name: str) -> object:
    """Return a module's attribute, or the module of that name in it."""
    value = getattr(import_module(module), name, None)
    return import_module(f"{module}.{name}") if value is None else value


def parameters(function: object) -> dict[str, inspect.Parameter]:
    """Return a function's parameters; `launch_all` passes its options on to `launch`."""
    taken = dict(inspect.signature(function).parameters)
    return taken | dict(inspect.signature(launch).parameters) if "options" in taken else taken


def without_site(notebook: Path) -> Iterator[str]:
    """Yield calls that start a job, but leave it to a default where."""
    names = imported(notebook)
    for cell, call in [(c, n) for c, t in statements(notebook) for n in ast.walk(t)]:
        if not isinstance(call, ast.Call):
            continue
        name, _, attribute = ast.unparse(call.func).partition(".")
        function = names.get(name)
        function = getattr(function, attribute, None) if attribute else function
        if not inspect.isfunction(function) or function is predict:  # it starts nothing
            continue
        takes, given = parameters(function), {keyword.arg for keyword in call.keywords}
        given |= {*list(takes)[: len(call.args)]}
        # None is the site of a run that is passed; a check of two runs starts nothing either.
        if "site" not in takes or takes["site"].default is None or {"run", "against"} <= given:
            continue
        if "site" not in given:
            yield f"{cell}: {ast.unparse(call)}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_job_runs_on_the_site_of_the_first_cell(notebook: Path) -> None:
    assert [*without_site(notebook)] == []


def test_a_job_without_the_site_is_found(tmp_path: Path) -> None:
    """The test above can fail: for names, for names in a module, for options that are passed on."""
    lines = ["from course import check, launch_all, predict\n"]
    lines += [
        "from labs import pipeline as lab\n",
        "predict('x', ...)\n",
        "check('amp')\n",
        "launch_all(script, configs)\n",
    ]
    lines += ["check('amp', run, against=run)\n", "lab.train_splits(script, splits)\n"]
    lines += ["lab.train_splits(script, splits, live)\n", "check('amp', site=site)\n"]
    cell = {"cell_type": "code", "id": "c", "source": lines}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    calls = ["check('amp')", "launch_all(script, configs)", "lab.train_splits(script, splits)"]
    assert {*without_site(tmp_path / "a.ipynb")} == {f"c: {call}" for call in calls}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_that_launch_take_what_the_class_presets(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    (cell,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    values, source = {}, "".join(cell["source"])
    exec(source, values)
    assert (values["quick"], values["site"]) == (True, "local")
    monkeypatch.setenv("COURSE_QUICK", "0")
    monkeypatch.setenv("COURSE_SITE", "slurm")
    exec(source, values)
    if values["script"]:  # a lab without a script launches nothing
        assert (values["quick"], values["site"]) == (False, "slurm")


def test_a_wrong_preset_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_QUICK", "True")
    with pytest.raises(ValueError, match="COURSE_QUICK=True: expected 1 .*or 0"):
        preset("quick", True)
    monkeypatch.setenv("COURSE_SITE", "slurn")
    with pytest.raises(ValueError, match=r"no site 'slurn'.*\(COURSE_SITE\): choose local"):
        preset("site", "local")
    monkeypatch.setenv("COURSE_SITE", "")
    assert preset("site", "local") == "local"


def test_commands_take_the_site_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without --site runs there, and --site is stronger."""
    monkeypatch.setenv("COURSE_SITE", "jean-zay-h100")
    command = ["run", "solutions/train.py", "--dry-run"]
    shown = CliRunner().invoke(app, command).output
    assert "#SBATCH" in shown and "h100" in shown
    assert "h100" not in CliRunner().invoke(app, [*command, "--site", "slurm"]).output
    monkeypatch.setenv("COURSE_SITE", "nowhere")
    assert "no site 'nowhere'" in str(CliRunner().invoke(app, command).exception)


@pytest.mark.parametrize(("preset", "option"), [("1", "--full"), ("0", "--quick")])
def test_commands_take_the_size_of_the_class(
    preset: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without --quick or --full has it, and an option is stronger."""
    sizes = []
    monkeypatch.setenv("COURSE_QUICK", preset)
    monkeypatch.setattr("course.config.rung", lambda *_, quick, **settings: sizes.append(quick))
    for options in [[], [option]]:
        CliRunner().invoke(app, ["run", "solutions/train.py", *options])
    assert sizes == [preset == "1", preset == "0"]


def test_a_script_without_a_config_runs_whatever_the_class_presets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "mine.py"
    script.write_text("print('mine')\n")
    command = ["run", str(script), "--dry-run", "--site", "slurm", "--name", "mine"]
    plain = CliRunner().invoke(app, [*command, "--", "--lr", "1"], catch_exceptions=False).output
    monkeypatch.setenv("COURSE_QUICK", "1")
    shown = CliRunner().invoke(app, [*command, "--", "--lr", "1"], catch_exceptions=False).output
    assert "#SBATCH" in plain and shown == plain
    wrong = CliRunner().invoke(app, [*command, "--quick", "--", "--lr", "1"]).exception
    assert "reads no config" in str(wrong)
