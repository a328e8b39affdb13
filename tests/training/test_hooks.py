"""Hooks: classes that a run's launch.json names, created in its training process."""

import json
from pathlib import Path

import pytest
from job_helpers import CONFIG, prepared

from course.jobs.plan import beside, plan_run
from course.runs.run import FOLDER_VARIABLE, Run
from course.training.hooks import Hook, RunEnded
from course.training.recorder import recording


class Counting(Hook):
    def epoch(self, number: int, values: dict[str, float]) -> None:
        if values["val_top1"] > 1:
            raise RunEnded(f"accuracy {values['val_top1']:g} in epoch {number}")
        if values["val_top1"] < 0:
            raise ValueError("negative")

    def end(self, status: str) -> None:
        self.recorder.set(weights_by=[7])


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Prepare a run with the hook Counting for recording."""
    run = prepared(tmp_path / "run", "", CONFIG)
    request = run.launched | {"hooks": [f"{__name__}:Counting"]}
    (run.folder / "launch.json").write_text(json.dumps(request))
    monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
    return run


def test_an_error_in_a_hook_is_printed(hooked: Run, capsys: pytest.CaptureFixture) -> None:
    with recording() as recorder:
        recorder.epoch(val_top1=-1.0)
        recorder.epoch(val_top1=0.5)
    assert hooked.status == "ok" and hooked.record.weights_by == [7]
    assert len(hooked.record.epochs) == 2
    assert "the result of Counting unknown: ValueError: negative" in capsys.readouterr().err


def test_a_hook_can_end_its_run(hooked: Run) -> None:
    with recording() as recorder:
        recorder.epoch(val_top1=2.0)
        raise AssertionError("the run goes on")
    assert (hooked.status, hooked.record.error) == ("cancelled", "accuracy 2 in epoch 1")
    assert hooked.record.weights_by == [7]


@pytest.mark.parametrize("name", ["labs.none:Hook", "labs.search.trials:Prunning", "labs.search."])
def test_a_wrong_name_is_refused(hooked: Run, name: str) -> None:
    (hooked.folder / "launch.json").write_text(json.dumps({"hooks": [name]}))
    expected = pytest.raises(ValueError, match=f"launch.json .*{name}.* expected MODULE:CLASS")
    with expected, recording():
        pass


def test_hooks_identify_a_run(runs_root: Path) -> None:
    script, hooks = "solutions/train.py", ["labs.search.trials:Pruning"]
    plain, hooked = plan_run(script, CONFIG), plan_run(script, CONFIG, hooks=hooks)
    assert "hooks" not in plain.request and plain.name != hooked.name
    against = prepared(runs_root / hooked.name, "", CONFIG)
    (against.folder / "launch.json").write_text(json.dumps(against.launched | hooked.request))
    assert beside(plain, against)[1].request["hooks"] == hooks
