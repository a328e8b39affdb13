"""Importing does nothing but import: no folder, file, process or change of the environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.runs.run import PROJECT

FORBIDDEN = """
import importlib, os, sys

def is_ours(path):
    return path.startswith(PROJECT) and "site-packages" not in path

def is_imported(frame):  # whether another library does it while it is imported
    while frame and not is_ours(frame.f_code.co_filename):
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return not frame

def refuse(event, arguments):
    changes = event in ("os.mkdir", "subprocess.Popen", "os.system", "os.putenv", "os.remove")
    path = str(arguments[0]) if arguments else ""
    if event == "open" and "__pycache__" not in path:
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        changes = writes or is_ours(path) and not path.endswith((".py", ".pyc"))
    if changes and (IS_STRICT or not is_imported(sys._getframe(1))):
        raise RuntimeError(f"{event} {arguments}")

sys.addaudithook(refuse)
for name in NAMES:
    importlib.import_module(name)
"""
PACKAGES = (
    "course",
    "labs",
    "electives",
    "race",
    "tools",
    "fast_resnet",
    "slurm_box",
    "trainspeed",
)
PACKAGES += ("idr_pytools",)
# These are started, not imported: programs, and what a process does first.
PROGRAMS = ("__main__", "srun", "by_hand", "fork_server", "preload", "hello", "sitecustomize")


def import_alone(names: list[str], folder: Path, *, is_strict: bool) -> str:
    """Import modules in a process that must not change anything, and return its error."""
    values = {"NAMES": names, "PROJECT": f"{PROJECT}/", "IS_STRICT": is_strict}
    code = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + FORBIDDEN
    env = os.environ | {"TMPDIR": str(folder), "HOME": str(folder), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    return done.stderr[-2000:] if done.returncode else ""


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """Return a folder in which somebody else has created the user's folders first."""
    for name in ("torchinductor_root", f"make-training-fast-{os.getuid()}"):
        folder = tmp_path / name
        folder.mkdir(mode=0o777)
        if os.getuid() == 0:
            os.chown(folder, 41003, -1)
    tmp_path.chmod(0o500)
    return tmp_path


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_imported_where_nothing_can_be_written(package: str, locked: Path) -> None:
    assert import_alone([package], locked, is_strict=True) == ""


@pytest.mark.slow
def test_no_module_changes_anything_when_it_is_imported(tmp_path: Path) -> None:
    """PyTorch does, so what other libraries do while they are imported is left out."""
    paths = [path for name in PACKAGES for path in sorted((PROJECT / name).rglob("*.py"))]
    names = [
        ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if not {"tests", "benchmarks", "_template"} & {*path.parts} and path.stem not in PROGRAMS
    ]
    assert import_alone(names, tmp_path, is_strict=False) == ""


def test_no_entry_of_the_path_is_relative() -> None:
    """Python would look for sitecustomize.py in it, in any folder where a command is typed."""
    code = "import os, sys; print([entry for entry in sys.path if not os.path.isabs(entry)])"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.stdout == "[]\n"
