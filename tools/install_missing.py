"""Install what the course needs and this Python lacks, and replace nothing: for Colab and Kaggle.

    python tools/install_missing.py

Their PyTorch fits the driver of their GPU, and their notebook needs its own packages. So each
installed package keeps its version, and JupyterLab is not installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent
NOT_NEEDED = {"jupyterlab", "jupyter-server"}  # the service has its own notebook editor


def missing_and_old(installed: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the course's requirements that are not installed, and those with another version.

    Args:
        installed: versions by canonical name.
    """
    texts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    needs = {canonicalize_name(need.name): need for need in map(Requirement, texts)}
    missing = [str(needs[name]) for name in needs.keys() - installed.keys() - NOT_NEEDED]
    old = [
        f"{name} {installed[name]} (expected {need.specifier})"
        for name, need in needs.items()
        if name in installed and not need.specifier.contains(installed[name], prereleases=True)
    ]
    return sorted(missing), old


def main() -> None:
    """Install the missing packages and the course; print what has a version that was not tested."""
    installed = {
        canonicalize_name(package.metadata["Name"]): package.version
        for package in distributions()
        if package.metadata["Name"]
    }
    missing, old = missing_and_old(installed)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={number}\n" for name, number in installed.items())
        constraints.flush()
        if missing:
            subprocess.run([*pip, "--constraint", constraints.name, *missing], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(PROJECT)], check=True)
    print(f"installed: {', '.join(missing) or 'nothing'}, and the course")
    if old:
        print(f"kept, although the course was not tested with these: {', '.join(old)}")


if __name__ == "__main__":
    main()
