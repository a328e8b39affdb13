"""The GPT on a mesh: it trains like one process, and continues on another mesh."""

from pathlib import Path

import pytest
import torch
from job_helpers import (
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
)

from course.config import Config, rung
from course.jobs import launch as jobs
from course.jobs.plan import plan_run
from course.runs.restarts import METADATA
from course.runs.run import PROJECT, Run

SCRIPT = PROJECT / "solutions/train_gpt.py"
SMALL = {"context": 16, "batch_size": 8, "epochs": 1, "steps": 6, "warmup_steps": 1, "val_steps": 1}
SMALL |= {"device": "cpu", "layers": 2, "heads": 4, "width": 16, "lr_warmup": 0, "lr": 0.02}
SMALL |= {"schedule": "", "clip": 0.5, "collective_timeout_s": 60}
# On a mesh, the same terms are added in another order: a sum of n terms then differs by √n
# roundings if these are random, and the longest sums are over the vocabulary. AdamW divides a
# gradient by its own size, so a weight's change, and the fall of the loss, differ as much.
TOLERANCE = 50257**0.5 * torch.finfo(torch.float32).eps


def config(**changes: object) -> Config:
    return rung("gpt", **SMALL | changes)


def train(cfg: Config, gpus: int, script: Path = SCRIPT) -> Run:
    run = over(jobs.launch(script, cfg, gpus=gpus))
    assert run.status == "ok", run.explain()
    return run


def losses(run: Run) -> list[float]:
    return run.steps["loss"].tolist()


@pytest.mark.parametrize(
    ("ranks", "tensor", "placed"),
    [
        pytest.param(4, 1, {"Shard(dim=0)": 28}, marks=pytest.mark.long),
        (4, 2, {"_StridedShard(dim=0, sf=2) × Shard(dim=0)": 8, "Shard(dim=0) × Shard(dim=1)": 4}),
        pytest.param(4, 4, {}, marks=pytest.mark.long),
    ],
)
def test_a_mesh_trains_like_one_process(
    runs_root: Path, ranks: int, tensor: int, placed: dict[str, int]
) -> None:
    one = train(config(), 1)
    mesh = train(config(shard="zero3", tensor=tensor), ranks)
    assert losses(one)[-1] < losses(one)[0] - 0.5
    assert losses(mesh) == pytest.approx(losses(one), rel=TOLERANCE)
    assert mesh.record.val_loss == pytest.approx(one.record.val_loss, rel=TOLERANCE)
    evidence = [mesh.evidence(rank) for rank in range(ranks)]
    assert evidence[0].spread.placements.items() >= placed.items()
    assert {item.share for item in evidence} == {8 * tensor // ranks}
    for rank, item in enumerate(evidence):  # neighbours share layers, and get the same sequences
        first = rank // tensor * tensor
        assert item.taken == evidence[first].taken
        group = str([*range(first, first + tensor)])
        due = {group: 2 * 2} if tensor > 1 else {}  # two blocks, each twice
        assert (item.forward_groups, item.backward_groups) == (due, due)
    assert evidence[0].taken != evidence[-1].taken or tensor == ranks


# All processes of a job get a signal, once: as Slurm sends it, in the forward pass of a step.
SIGTERM = """
import os, subprocess
from pathlib import Path
from torch.distributed import checkpoint as dcp
def unhurried(*args, save=dcp.async_save, **options):
    assert not Path(f"signalled-{os.environ['RANK']}").exists(), "SIGKILL may follow soon"
    return save(*args, **options)
dcp.async_save = unhurried
def signalled(meter, phase, loss=None, lap=Meter.lap):
    lap(meter, phase, loss)
    first = Path(f"signalled-{os.environ['RANK']}")
    if (phase, meter.step) == ("forward", 4) and not first.exists():
        first.touch()
        kill = ["sh", "-c", f"kill -TERM -{os.getpgid(0)}"]
        subprocess.run(kill, check=True, start_new_session=True)
Meter.lap = signalled
"""
# While the second checkpoint is written.
SIGKILL = """
import os, signal
from pathlib import Path
from torch.distributed import checkpoint as dcp
def killed(state, checkpoint_id, save=dcp.async_save, **options):
    pending = save(state, checkpoint_id=checkpoint_id, **options)
    if checkpoint_id.name == "step-000006" and not Path("../../is-resumed").exists():
        os.killpg(0, signal.SIGKILL)
    return pending
dcp.async_save = killed
"""
IN_PROCESS = {"shard": "zero3", "tensor": 2, "save_every": 3, "async_save": True}
IN_PROCESS |= {"async_process": True}


def script_with(folder: Path, added: str) -> Path:
    script, end = folder / "train_gpt.py", 'if __name__ == "__main__":'
    script.write_text(SCRIPT.read_text().replace(end, added + end))
    return script


@pytest.mark.long
def test_training_continues_on_another_mesh(tmp_path: Path, runs_root: Path) -> None:
    whole = train(config(epochs=3), 1)
    run = train(config(**IN_PROCESS), 4)
    for epochs, gpus in ((2, 4), (3, 1)):
        run = over(jobs.resume(run, {"epochs": epochs, "tensor": 1}, gpus=gpus))
        assert run.status == "ok", run.explain()
        assert losses(run) == pytest.approx(losses(whole)[: 6 * epochs], rel=TOLERANCE)
        assert f"continues from the checkpoint after step {6 * (epochs - 1)}" in run.tail(lines=100)
    for setting, value in (("layers", 3), ("heads", 2), ("width", 32), ("vocabulary", 50304)):
        refused = over(jobs.resume(run, {setting: value, "epochs": 4}, gpus=1))
        due = f"{setting}={value}: the checkpoint after step 18 was saved with {setting}="
        assert f"{due}{SMALL.get(setting, 50257)}" in refused.record.error
    refused = over(jobs.resume(run, {"shard": "", "async_process": False, "epochs": 4}, gpus=1))
    assert "none of 2 checkpoints" in refused.record.error
    printed = "".join(path.read_text() for path in (refused.folder / "logs").iterdir())
    assert "shards of several ranks: resume it with shard set" in printed


@pytest.mark.long
def test_a_signal_to_ranks_and_writers_saves_on_a_mesh(tmp_path: Path, runs_root: Path) -> None:
    run = train(config(**IN_PROCESS), 4, script_with(tmp_path, SIGTERM))
    assert "continues from the checkpoint after step 5" in run.tail(lines=200)
    whole = train(config(shard="zero3", tensor=2), 4)
    assert losses(run) == losses(whole)


@pytest.mark.long
def test_ranks_killed_while_they_save_continue_from_the_previous_checkpoint(
    tmp_path: Path, runs_root: Path
) -> None:
    script = script_with(tmp_path, SIGKILL)
    cfg = config(**IN_PROCESS, epochs=2)
    first = over(jobs.launch(script, cfg, gpus=4))
    assert first.status == "lost", first.explain()
    complete = [path.parent.name for path in (first.folder / "checkpoints").glob(f"*/{METADATA}")]
    assert complete == ["step-000003"]
    (runs_root.parent / "is-resumed").touch()
    second = train(cfg, 4, script)
    assert "continues from the checkpoint after step 3" in second.tail(lines=200)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="tensor=3 cannot share heads=4: choose 1 or 2 or 4"):
        config(shard="zero3", tensor=3)
    with pytest.raises(ValueError, match="heads=3 cannot share width=16 evenly"):
        config(heads=3, shard="zero3", tensor=3)
    with pytest.raises(ValueError, match="tensor=2 with shard|shard='' with tensor=2"):
        config(tensor=2)
    with pytest.raises(ValueError, match="async_save=False with async_process=True"):
        config(shard="zero3", async_process=True)
    with pytest.raises(ValueError, match="compile='default' with shard='zero3'"):
        config(shard="zero3", compile="default")
    for gpus in (1, 2, 3):
        with pytest.raises(ValueError, match=f"gpus={gpus}: tensor=4 needs a multiple of 4"):
            plan_run(SCRIPT, config(shard="zero3", tensor=4, batch_size=12), gpus=gpus)
    words = "batch_size=3 .* gpus=4 with tensor=2 cannot share it evenly: choose .* of 2, such as 2"
    with pytest.raises(ValueError, match=words):
        plan_run(SCRIPT, config(shard="zero3", tensor=2, batch_size=3), gpus=4)
    plan_run(SCRIPT, config(shard="zero3", tensor=2, batch_size=2), gpus=4)
