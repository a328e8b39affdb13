"""Commands: JupyterLab on this clone's notebooks, and its kernel for a JupyterHub."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from course.cli.options import app

KERNEL, TITLE = "make-training-fast", "Make training fast"
CONFIG = Path(__file__).with_name("jupyter")  # labconfig/ has the settings of JupyterLab
OTHERS_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=OTHERS_OPTIONS)
def lab(context: typer.Context) -> None:
    """Open JupyterLab at the first lab, from the active environment.

    Options are passed on to JupyterLab, such as --no-browser --port 8890.
    """
    from course.runs import PROJECT

    _check_clone()
    (first,) = (PROJECT / "notebooks").glob("*_start_here.ipynb")
    command = [sys.executable, "-P", "-m", "jupyterlab", f"--notebook-dir={PROJECT}"]
    # Other users of this machine could read unencrypted messages.
    command += ["--KernelManager.transport_encryption=auto"]
    command += [f"--LabApp.default_url=/lab/tree/{first.relative_to(PROJECT)}"]
    if os.getuid() == 0:  # as in a container, where JupyterLab would not start otherwise
        command.append("--allow-root")
    paths = [str(CONFIG), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    os.execv(sys.executable, [*command, *context.args])


@app.command()
def kernel() -> None:
    """Install a kernel for a JupyterHub, which keeps this shell's settings of the course."""
    from ipykernel.kernelspec import install

    from course.runs import PROJECT

    _check_clone()
    env = {name: value for name, value in os.environ.items() if name.startswith("COURSE_")}
    env["PYTHONPATH"] = str(PROJECT)
    path = install(user=True, kernel_name=KERNEL, display_name=TITLE, env=env)
    typer.echo(f"installed in {path}. In a notebook, choose Kernel, Change Kernel, {TITLE}")


def _check_clone() -> None:
    """Raise ValueError if this folder is a different clone than the one that Python imports."""
    from labs.start_here.doctor import clone

    status, result, *fix = clone()
    if status == "fail":
        raise ValueError(f"{result}. To fix it: {fix[0]}")
