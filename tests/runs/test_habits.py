"""The commands of the habits on the page about tracking runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_helpers import own_copy

from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT, Run

PAGE = PROJECT / "docs/tracking.md"
HABITS = dict(re.findall(r"\| (.+?) \| .+? \| `(.+?)` \|", PAGE.read_text()))


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """Create a learner's folder: two runs, and the scripts of the course."""
    for name, run in zip(("FIRST", "SECOND"), recorded_runs("nvidia-h100", "search")):
        own_copy(run, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "train.py").write_text(f"print({name!r})\n")
    weights = tmp_path / "runs" / "FIRST" / "weights.pt"
    weights.write_bytes(b"0" * 5000)
    os.utime(weights, (0, 0))
    (tmp_path / "runs" / "SECOND" / "weights.pt").write_bytes(b"0")
    (tmp_path / "solutions").symlink_to(PROJECT / "solutions")
    return tmp_path


def run_command(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "COURSE_RUNS": str(folder / "runs"), **variables}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_the_commands_of_the_habits(shell: Path) -> None:
    output = run_command(HABITS["code that can be compared"], shell)
    assert "-print('FIRST')\n+print('SECOND')" in output.stdout
    output = run_command(HABITS["tidy storage"], shell)
    assert output.stdout.split()[1::2] == ["runs/FIRST/weights.pt"]
    assert run_command(HABITS["results to share"], shell).returncode == 0
    result = json.loads((shell / "result.json").read_text())
    assert result["val_top1"] == Run(shell / "runs/FIRST").record.val_top1
    for habit in ("config as data", "profile before you buy GPUs"):
        command = HABITS[habit].removesuffix("--dry-run")
        output = run_command(f"{command} --dry-run", shell)
        assert output.returncode == 0, output.stderr
        assert "#SBATCH" in output.stdout or "python" in output.stdout
