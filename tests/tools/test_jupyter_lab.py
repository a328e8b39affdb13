"""`course lab`, `course kernel` and `make lab`: JupyterLab from the active environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.__main__ import app
from course.runs import PROJECT
from tools import jupyter_lab


def test_lab_starts_jupyterlab_here_with_the_courses_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []
    monkeypatch.setattr(os, "execv", lambda path, command: started.extend([path, *command]))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    monkeypatch.chdir(PROJECT)
    CliRunner().invoke(app, ["lab", "--no-browser", "--port", "8890"], catch_exceptions=False)
    assert started[:5] == [sys.executable, sys.executable, "-P", "-m", "jupyterlab"]
    assert f"--notebook-dir={PROJECT}" in started
    assert "--LabApp.default_url=/lab/tree/notebooks/day0_1_start_here.ipynb" in started
    assert started[-3:] == ["--no-browser", "--port", "8890"]
    assert ("--allow-root" in started) == (os.getuid() == 0)
    code = "from jupyterlab_server.settings_utils import _get_overrides; "
    code += "import json; print(json.dumps(_get_overrides('/nowhere')[0]))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert json.loads(shown) == json.loads(
        (jupyter_lab.CONFIG / "labconfig" / "default_setting_overrides.json").read_text()
    )


@pytest.mark.parametrize("command", ["lab", "kernel"])
def test_another_clone_than_the_imported_one_is_refused(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "course" / "config").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, [command]).exception
    assert f"you are in {tmp_path}. To fix it: export PYTHONPATH={tmp_path}" in str(error)


def test_a_kernel_keeps_the_classs_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COURSE_SITE", "slurm")
    monkeypatch.chdir(PROJECT)
    CliRunner().invoke(app, ["kernel"], catch_exceptions=False)
    (path,) = tmp_path.glob("kernels/make-training-fast/kernel.json")
    kernel = json.loads(path.read_text())
    assert kernel["env"]["PYTHONPATH"] == str(PROJECT)
    assert kernel["env"]["COURSE_SITE"] == "slurm"
    assert kernel["argv"][0] == sys.executable


@pytest.mark.parametrize(
    ("shared", "imported", "installs"),
    [(sys.prefix, PROJECT, False), (sys.prefix, "", True), ("/nowhere", PROJECT, True)],
    ids=["this clone", "another clone", "no such environment"],
)
def test_make_installs_nothing_if_a_shared_environment_is_active(
    shared: str, imported: str, installs: bool, tmp_path: Path
) -> None:
    """Without PYTHONPATH, Python imports what the environment has: here nothing, or another."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (clone / name).symlink_to(PROJECT / name)
    (clone / "course").symlink_to(imported / "course" if imported else tmp_path)
    env = os.environ | {"VIRTUAL_ENV": shared, "PYTHONPATH": str(imported)}
    env = {name: value for name, value in env.items() if not name.startswith("MAKE")}  # make test
    done = subprocess.run(
        ["make", "--dry-run", "lab"], cwd=clone, env=env, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "course lab", done.stderr
    assert ("pip install" in done.stdout) == installs
