"""Tests of bitwise identity, checkpoints, and their costs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from job_helpers import prepared

from course.config import Config, rung
from course.runs.run import Run
from labs import restart as lab
from labs.restart import preemption


def save_run(folder: Path, config: Config, seconds: list[float], evidence: dict) -> Run:
    run = prepared(folder, "", config)
    rows = [{"step": step, "step_s": value, "loss": value} for step, value in enumerate(seconds)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "record.json").write_text(json.dumps({"status": "ok", "evidence": evidence}))
    return run


def test_costs_of_saving(tmp_path: Path) -> None:
    size = {"warmup_steps": 2, "steps": 10}
    never = save_run(tmp_path / "never", rung("channels_last", **size), [9, 9] + [0.1] * 8, {})
    config = rung("restarted", **size, save_every=4)
    # Steps are counted from 0: a save after four steps takes place in step 4.
    seconds = [9, 9, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1, 0.5, 0.1]
    saved = save_run(tmp_path / "saved", config, seconds, {})
    table = lab.saving_costs([saved, never]).set_index("saved")
    assert [*table.index] == ["never", "torch.save"]
    row = table.loc["torch.save", ["step_ms", "after_ms", "save_ms", "cost"]]
    assert row.tolist() == pytest.approx([100, 500, 400, 1.0])


def test_losses_of_both_processes_are_compared(tmp_path: Path) -> None:
    config = rung("restarted", steps=4, warmup_steps=1)
    reference = save_run(tmp_path / "reference", config, [4, 3, 2, 1], {})
    run = save_run(tmp_path / "run", config, [4, 3, 2, 1.5], {"began_at": 2})
    table = lab.compare_losses(run, reference)
    assert table["process"].tolist() == [1, 1, 2, 2]
    assert table["same"].tolist() == [True, True, True, False]
    alt = lab.plot_restart(run, reference).alt
    assert "resumes at step 2; 3 of 4 steps have a bitwise identical loss" in alt


def test_curves_of_a_training_that_a_second_run_continued(tmp_path: Path) -> None:
    config = rung("imagenet", data="default", epochs=2, steps=2, warmup_steps=1)
    runs = [prepared(tmp_path / name, "", config) for name in ("first", "second")]
    for run, count in zip(runs, (3, 4)):
        rows = [{"step": step, "lr": 0.1, "loss": 4 - step} for step in range(count)]
        (run.folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = {"status": "ok", "epochs": [{"val_top1": 0.2}, {"val_top1": 0.4}]}
    (runs[1].folder / "record.json").write_text(json.dumps(record))
    picture = lab.plot_long_run(*runs)
    loss, top1, _ = ([line.get_xydata().tolist() for line in axes.lines] for axes in picture.axes)
    assert loss[:2] == [[[0, 4], [1, 3], [2, 2]], [[3, 1]]]
    assert top1[:2] == [[[2, 20]], [[4, 40]]]  # an epoch of 2 steps is validated after both


def test_the_best_interval_is_youngs() -> None:
    best = (2 / 60 * 24) ** 0.5  # √(2 · hours per save · hours between accidents)
    shares = [lab.lost_share(1, hours, 100, 100) for hours in (best, 0.8 * best, 1.25 * best)]
    assert shares[0] == min(shares) == pytest.approx(2 / 60 / best)
    alt = lab.plot_checkpoint_interval(save_min=1, nodes=(1, 2048), broken_days=264).alt
    assert "1 node: best every 14" in alt and "2,048 nodes: best every 19 min, 10" in alt


def test_signals_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.recorded_signals()
    assert table["SIGKILL, s"].iloc[:3].between(4, 6).all()  # KillWait is 5 s
    assert (table["state"] == "PENDING").sum() == 2

    def answer(*words: str) -> SimpleNamespace:
        partition = "PartitionName=gpu GraceTime=60 PreemptMode=REQUEUE"
        config = "Configuration data\nJobRequeue = 1\nKillWait                = 30 sec\n"
        return SimpleNamespace(stdout=config if words[-1] == "config" else partition)

    monkeypatch.setattr(preemption.slurm_partitions, "ask", answer)
    assert lab.preemption_settings().loc["gpu"].tolist() == ["REQUEUE", "60 s", "30 sec", "1", ""]
    monkeypatch.setattr(preemption.slurm_partitions, "ask", lambda *_: None)
    assert lab.preemption_settings().empty
