"""A check of a run: its parts, the lines that they name, and scripts that crash."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from check_helpers import TEXT, verdicts
from typer.testing import CliRunner

from course.__main__ import app
from course.checks import exercises, store
from course.checks.compare import Folder
from course.checks.verdict import FAILED, PASSED, UNMEASURABLE, Checked, check
from course.config import rung
from course.jobs.launch import launch
from course.runs.run import Run

pytestmark = pytest.mark.slow
SMALL = {
    "quick": True,
    "model": "resnet18",
    "data": "imagenet",
    "image_px": 32,
    "batch_size": 4,
    "steps": 5,
    "warmup_steps": 4,
    "val_steps": 1,
    "device": "cpu",
}
SOLVED = exercises.render(TEXT, ["device", "amp"])
MODEL = "    model = model.to(device)\n"
CRASH = "import os, signal\n\nos.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Run, Run]]:
    """Train the rung of `amp` and the one before it; yield both runs."""
    folder = Folder()
    run = folder.add("amp", SOLVED, rung("amp", **SMALL | {"precision": "bf16"}), 1)
    before = folder.add("device", SOLVED, rung("device", **SMALL), 1)
    folder.work()
    yield run, before
    folder.stop()


@pytest.fixture
def checked(trained: tuple[Run, Run], tmp_path: Path, runs_root: Path) -> Callable[[str], Checked]:
    def check_script(text: str) -> Checked:
        run, before = trained
        folder = shutil.copytree(run.folder, tmp_path / "run")
        (folder / "train.py").write_text(text)
        return check("amp", Run(folder), against=before)

    return check_script


def test_the_solution_passes_and_what_it_prints_appears_once(checked, capsys) -> None:
    lines = "    print('my own print')\n    print('asked to end')\n"  # the second: a Recorder's
    done = checked(SOLVED.replace(MODEL, MODEL + lines))
    assert (verdicts(done)["correct"], verdicts(done)["mechanism"]) == (PASSED, PASSED), done
    shown = capsys.readouterr().out
    assert shown.count("my own print") == 1 and "asked to end" not in shown


def test_a_todo_that_is_open_is_named(checked) -> None:
    done = checked(exercises.render(TEXT, ["device"]))
    assert verdicts(done) == {
        "correct": UNMEASURABLE,
        "mechanism": FAILED,
        "effect": UNMEASURABLE,
    }
    assert "TODO amp is still open in this run's script" in repr(done)
    assert "→ exercises/train.py, line " in repr(done)


def test_a_wrong_answer_fails_and_its_effect_is_not_judged(checked) -> None:
    done = checked(SOLVED.replace("enabled=cfg.precision in HALF", "enabled=True"))
    assert verdicts(done) == {
        "correct": FAILED,
        "mechanism": UNMEASURABLE,
        "effect": UNMEASURABLE,
    }
    assert "the forward pass runs in float16, expected float32: `torch.autocast" in repr(done)
    assert "→ exercises/train.py, line " in repr(done)


def test_a_syntax_error_is_named_before_anything_starts(runs_root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nmodel = (\n")
    words = r"/train.py, line 2: '\(' was never closed: `model = \(`. Nothing was launched"
    with pytest.raises(ValueError, match=words):
        check("amp", script=str(script))
    with pytest.raises(ValueError, match=words):
        launch(script, rung("baseline"))
    assert not list(runs_root.glob("*-*"))


def test_an_open_exercise_launches_nothing_and_stores_nothing(
    runs_root: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(exercises.render(TEXT, ["device"]))
    done = check("amp", script=str(script))
    assert verdicts(done) == {
        "correct": UNMEASURABLE,
        "mechanism": FAILED,
        "effect": UNMEASURABLE,
    }
    assert "TODO amp is still open, so nothing was launched" in repr(done)
    assert re.search(r"→ \S+train.py, line \d+: # TODO amp: run the forward pass", repr(done))
    command = ["check", "amp", "--script", str(script), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "still open" in result.stdout
    script.write_text(script.read_text() + "broken = (\n")
    with pytest.raises(ValueError, match=r"train.py, line \d+: '\(' was never closed"):
        check("amp", script=str(script))
    assert not runs_root.exists()


def test_a_wrong_script_launches_nothing(runs_root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOLVED.replace("enabled=cfg.precision in HALF", "enabled=True"))
    done = check("amp", script=str(script))
    assert verdicts(done)["correct"] == FAILED and not [*runs_root.glob("*-*")]
    assert "the forward pass runs in float16, expected float32: `torch.autocast" in repr(done)
    stored = store.read()["checks"]["amp"]
    assert stored["correct"] == FAILED and stored["script"] == exercises.digest(script.read_text())


def test_a_recorded_run_is_checked_although_the_exercise_is_open(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(exercises.render(TEXT, ["device"]))
    done = check("amp", script=str(script), site="recorded-nvidia-h100", quick=False)
    assert "the recorded run is the solution's" in repr(done)
    assert verdicts(done)["mechanism"] == PASSED


def test_a_script_cannot_end_the_notebook(checked) -> None:
    assert "the script ended its process: SIGSEGV" in repr(checked(CRASH + SOLVED))


def test_a_solution_that_was_overwritten_is_named(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(exercises.render(TEXT, ()))
    monkeypatch.setattr(exercises, "SOLUTIONS", tmp_path)
    with pytest.raises(ValueError, match="solutions/train.py has no seams"):
        exercises.solution_of("amp")
